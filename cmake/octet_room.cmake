# octet_room([LIBS external targets...] [OPTIONS flags...] [EXCLUDE regex] [TEST_LABEL label] [TEST_DEPS rooms...]
#            [UNITY [ALONE sources...]])
#
# Makes the static library of the calling folder, src/ROOM: octet_ROOM (kernels/cpu: octet_kernels_cpu) of every *.cc in
# it and below (and *.cu where OCTET_CUDA is on) whose path does not match EXCLUDE, except
#   *_test.cc   one GoogleTest program octet_ROOM_test, label L0; *_long_test.cc make a second one, label L3
#   *_bench.cc  Google Benchmark, octet_ROOM_bench
#   *_fuzz.cc   libFuzzer, octet_fuzz.cmake
#   testing/, *cases.cc  what tests share: the library octet_ROOM_testing, built and linked for tests and benchmarks only
# It links the rooms that cmake/rooms.txt lets it include: the link graph is the layer rule. TEST_DEPS are what its tests
# need besides. UNITY: with OCTET_UNITY the sources are compiled in batches that read their headers once, but for those
# ALONE, whose own names others have too.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/rooms.txt)
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/rooms.txt _rooms REGEX "^[a-z]")
foreach(_line ${_rooms})
  string(REGEX MATCH "^([a-z/]+):(.*)$" _ "${_line}")
  set(_room ${CMAKE_MATCH_1})
  string(STRIP "${CMAKE_MATCH_2}" _deps)
  if((_room MATCHES "/cuda$" AND NOT OCTET_CUDA) OR (_room STREQUAL "serve" AND NOT OCTET_SERVE))
    continue()
  endif()
  string(REPLACE " " ";" _deps "${_deps}")
  if(NOT OCTET_CUDA)
    list(FILTER _deps EXCLUDE REGEX "/cuda$")
  endif()
  string(REPLACE "/" "_" _deps "${_deps}")
  list(TRANSFORM _deps PREPEND octet_)
  set(OCTET_DEPS_${_room} ${_deps})
  list(APPEND OCTET_ROOMS ${_room})
endforeach()

add_library(octet_flags INTERFACE)
target_include_directories(octet_flags INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
set(_cxx "$<COMPILE_LANGUAGE:CXX>")
target_compile_options(octet_flags INTERFACE "$<${_cxx}:-Wall;-Wextra;-Wno-unused-parameter>"
                                             "$<${_cxx}:-Wno-missing-field-initializers;-fno-math-errno>"
                                             "$<${_cxx}:-ffp-contract=off;-march=${OCTET_MARCH}>")
if(OCTET_WERROR)
  target_compile_options(octet_flags INTERFACE "$<${_cxx}:-Werror>")
endif()
# float32 arithmetic of the kernels rounds as on the CPU: no contraction, IEEE division and square root.
target_compile_options(octet_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;--expt-relaxed-constexpr>"
                                             "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall>")
if(OCTET_CUDA_LINEINFO)
  target_compile_options(octet_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>")
endif()
if(OCTET_SANITIZE)
  string(REPLACE ";" "," _san "${OCTET_SANITIZE}")
  # gcc's flow warnings take the checks themselves for paths of the program
  target_compile_options(octet_flags INTERFACE -fsanitize=${_san} -fno-omit-frame-pointer -g1 -fno-sanitize-recover=all
                                               -Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-null-dereference
                                               $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)  # Asio has fences beside its locks
  target_link_options(octet_flags INTERFACE -fsanitize=${_san})
  target_compile_definitions(octet_flags INTERFACE OCTET_SANITIZED)
endif()

include(${CMAKE_CURRENT_LIST_DIR}/octet_fuzz.cmake)

function(octet_test_program target label)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${target} ${A_SOURCES})
  target_link_libraries(${target} PRIVATE octet_flags ${A_DEPS} octet_base_testing GTest::gtest GTest::gtest_main)
  gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST 
                       PROPERTIES LABELS ${label} TIMEOUT 600 ENVIRONMENT "OMP_WAIT_POLICY=PASSIVE")
  add_test(NAME ReadableCases.${target}
           COMMAND bash ${PROJECT_SOURCE_DIR}/tests/program/readable_cases_test.sh $<TARGET_FILE:${target}>)
  set_tests_properties(ReadableCases.${target} PROPERTIES LABELS ${label})
endfunction()

function(octet_room)
  cmake_parse_arguments(A "UNITY" "EXCLUDE;TEST_LABEL" "LIBS;OPTIONS;TEST_DEPS;ALONE" ${ARGN})
  file(RELATIVE_PATH room ${PROJECT_SOURCE_DIR}/src ${CMAKE_CURRENT_SOURCE_DIR})
  string(REPLACE "/" "_" name ${room})
  set(deps ${OCTET_DEPS_${room}})
  file(GLOB_RECURSE all CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  if(OCTET_CUDA)
    file(GLOB_RECURSE device CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cu)
    list(APPEND all ${device})
  endif()
  if(A_EXCLUDE)
    list(FILTER all EXCLUDE REGEX "${A_EXCLUDE}")
  endif()
  if(NOT A_TEST_LABEL)
    set(A_TEST_LABEL L0)
  endif()
  set(sources ${all})
  list(FILTER sources EXCLUDE REGEX "(_test|_bench|_fuzz)\\.cc$")
  set(shared_by_tests ${sources})
  list(FILTER shared_by_tests INCLUDE REGEX "/testing/|cases\\.cc$")
  list(FILTER sources EXCLUDE REGEX "/testing/|cases\\.cc$")
  set(tests ${all})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  set(long_tests ${tests})
  list(FILTER long_tests INCLUDE REGEX "_long_test\\.cc$")
  list(FILTER tests EXCLUDE REGEX "_long_test\\.cc$")
  set(benches ${all})
  list(FILTER benches INCLUDE REGEX "_bench\\.cc$")
  set(test_deps ${A_TEST_DEPS})
  list(TRANSFORM test_deps PREPEND octet_)
  if(sources)
    add_library(octet_${name} STATIC ${sources})
    target_link_libraries(octet_${name} PUBLIC ${deps} fmt::fmt PRIVATE octet_flags ${A_LIBS})
    target_compile_options(octet_${name} PRIVATE ${A_OPTIONS})
    if(A_UNITY AND OCTET_UNITY)
      set_target_properties(octet_${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
      set_source_files_properties(${A_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
      target_compile_options(octet_${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
    endif()
  else()
    add_library(octet_${name} INTERFACE)
    target_link_libraries(octet_${name} INTERFACE ${deps} fmt::fmt)
  endif()
  if(shared_by_tests)
    add_library(octet_${name}_testing STATIC EXCLUDE_FROM_ALL ${shared_by_tests})
    target_link_libraries(octet_${name}_testing PUBLIC octet_${name} ${test_deps} PRIVATE octet_flags)
    list(APPEND test_deps octet_${name}_testing)
  endif()
  if(OCTET_TESTS AND tests)
    octet_test_program(octet_${name}_test ${A_TEST_LABEL} SOURCES ${tests} DEPS octet_${name} ${test_deps} ${A_LIBS})
  endif()
  if(OCTET_TESTS AND long_tests)
    octet_test_program(octet_${name}_long_test L3 SOURCES ${long_tests} DEPS octet_${name} ${test_deps} ${A_LIBS})
  endif()
  if(OCTET_FUZZ)
    set(fuzzers ${all})
    list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cc$")
    octet_fuzz_programs(${name} ${fuzzers})
  endif()
  if(OCTET_BENCHMARKS AND benches)
    add_executable(octet_${name}_bench ${benches})
    target_link_libraries(octet_${name}_bench PRIVATE octet_flags octet_${name} ${test_deps} octet_base_testing
                                                      benchmark::benchmark
                                                      benchmark::benchmark_main)
  endif()
endfunction()
