# Options of the whole build, and checks of their values. Included once, after project().

set(TUTTI_TRAIN AUTO CACHE STRING "Build the training harness: AUTO (where libtorch is found), ON or OFF")
set(TUTTI_CUDA AUTO CACHE STRING "Build the device code: AUTO (where nvcc is found), ON or OFF")

# Without a build type CMake compiles without optimisation, so all measurements would be meaningless.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release or RelWithDebInfo" FORCE)
endif()

find_program(TUTTI_CCACHE ccache DOC "Compiler cache; used when it is there")
if(TUTTI_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TUTTI_CCACHE})
endif()

set(sanitizer_choices "" address undefined address,undefined thread)
if(NOT TUTTI_SANITIZER IN_LIST sanitizer_choices)
  message(FATAL_ERROR "TUTTI_SANITIZER is '${TUTTI_SANITIZER}'; "
    "it may be empty, address, undefined, address,undefined or thread.")
endif()

if(TUTTI_FUZZERS AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "TUTTI_FUZZERS needs clang, this is ${CMAKE_CXX_COMPILER_ID}: -D CMAKE_CXX_COMPILER=clang++")
endif()

set(three_choices AUTO ON OFF)
foreach(option TUTTI_CUDA TUTTI_TRAIN)
  if(NOT ${option} IN_LIST three_choices)
    message(FATAL_ERROR "${option} is '${${option}}'; it may be AUTO, ON or OFF.")
  endif()
endforeach()
