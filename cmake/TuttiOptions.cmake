# Options that shape the whole build, and the checks of what was asked for. Included once, after project().

option(TUTTI_CUDA "Build the device code (needs nvcc)" OFF)

# An unnamed build type would compile without optimisation, and the numbers would be nonsense.
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

if(TUTTI_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "TUTTI_CUDA=ON needs a CUDA compiler and none was found. "
      "Name one with -DCMAKE_CUDA_COMPILER=..., or use the preset 'release': "
      "the library builds and runs without CUDA, on host memory.")
  endif()
  message(FATAL_ERROR "TUTTI_CUDA=ON: version ${PROJECT_VERSION} has no device code yet. "
    "Use the preset 'release': it runs on host memory, on machines with and without a GPU.")
endif()
