# Fuzz targets: every *_fuzz.cc of a room becomes the libFuzzer program octet_<stem>, built only with -DOCTET_FUZZ=ON and
# clang, with address and undefined-behaviour checks. The target octet_fuzzers builds them all.
#
#   CXX=clang++ cmake -S . -B build/fuzz -G Ninja -DOCTET_FUZZ=ON -DOCTET_TESTS=OFF -DOCTET_WERROR=OFF
#   ninja -C build/fuzz octet_fuzzers
#   build/fuzz/src/io/octet_safetensors_fuzz -max_total_time=60 CORPUS_FOLDER
if(OCTET_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "OCTET_FUZZ needs clang (libFuzzer); the compiler is ${CMAKE_CXX_COMPILER_ID}: "
                        "set CXX=clang++ and use a fresh build folder")
  endif()
  target_compile_options(octet_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined
                                               -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1)
  target_link_options(octet_flags INTERFACE -fsanitize=address,undefined)
  add_custom_target(octet_fuzzers)
endif()

function(octet_fuzz_programs room)
  foreach(source ${ARGN})
    get_filename_component(stem ${source} NAME_WE)
    add_executable(octet_${stem} ${source})
    target_link_libraries(octet_${stem} PRIVATE octet_flags octet_${room} -fsanitize=fuzzer)
    add_dependencies(octet_fuzzers octet_${stem})
  endforeach()
endfunction()
