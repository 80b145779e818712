# Writes build_commit.h with the commit of the source tree, only when it differs, so that nothing is compiled again for
# the same commit. Run at every build: cmake -DSOURCE=folder -DHEADER=file -P build_commit.cmake
cmake_minimum_required(VERSION 3.25)
set(commit "unknown")  # an archive, or no git here
find_program(GIT git)
if(GIT)
  # safe.directory: a tree that belongs to another user is read, not run. The prefix is empty at the top of a checkout
  # only: an archive unpacked inside another repository is not of that repository's commit.
  set(git ${GIT} -c safe.directory=* -C ${SOURCE})
  execute_process(COMMAND ${git} rev-parse --show-prefix RESULT_VARIABLE failed OUTPUT_VARIABLE prefix
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed AND prefix STREQUAL "")
    set(ENV{GIT_OPTIONAL_LOCKS} 0)
    execute_process(COMMAND ${git} describe --always --dirty --abbrev=12 --exclude=* RESULT_VARIABLE failed
                    OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(NOT failed)
      set(commit "${described}")
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${HEADER} CONTENT "#define OCTET_COMMIT \"${commit}\"\n" @ONLY)
