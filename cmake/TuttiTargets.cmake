# The flags of every target, and the functions that make them.

add_library(tutti_flags INTERFACE)
target_compile_options(tutti_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast
  # GCC 12 sees overlaps in string concatenation that are not there (GCC bug 105329); Asio's fences alarm -Wtsan.
  # (clang-tidy reads these flags too, and GCC is silent about a -Wno- that it does not know.)
  $<$<CXX_COMPILER_ID:GNU>:-Wno-unknown-warning-option>
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>
  $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>  # so that ccache can keep what uses a precompiled header
  -ffp-contract=off            # same bits on every machine: no fused multiply-add behind our back
  $<$<BOOL:${TUTTI_WERROR}>:-Werror>)
if(TUTTI_SANITIZER)
  target_compile_options(tutti_flags INTERFACE -fsanitize=${TUTTI_SANITIZER} -fno-omit-frame-pointer
    -fno-sanitize-recover=all
    # Sources of tests are not looked at for undefined behaviour: that doubles the time to compile them.
    $<$<BOOL:$<TARGET_PROPERTY:TUTTI_TEST>>:-fno-sanitize=undefined>)
  target_link_options(tutti_flags INTERFACE -fsanitize=${TUTTI_SANITIZER})
endif()
if(TUTTI_FUZZERS)
  target_compile_options(tutti_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# What most sources include, parsed once; that takes a compiler a second for each file otherwise. The sources include
# what they use all the same, which scripts/test --full checks.
set(tutti_no_code ${CMAKE_BINARY_DIR}/precompiled.cc) # a target needs a source to own a precompiled header
file(CONFIGURE OUTPUT ${tutti_no_code} CONTENT "")
add_library(tutti_headers OBJECT ${tutti_no_code})
target_link_libraries(tutti_headers PRIVATE tutti_flags fmt::fmt)
target_precompile_headers(tutti_headers PRIVATE <fmt/format.h> <fmt/ranges.h> <algorithm> <array> <atomic> <charconv>
  <chrono> <cstdint> <cstring> <functional> <map> <memory> <mutex> <optional> <span> <string> <string_view> <vector>)

# tutti_compile_apart(a.cc ...): the presets compile about ten sources of a target as one file (CMake's "unity build"),
# because parsing headers is most of the cost of a build. Names in anonymous namespaces then meet. These sources of the
# current folder are compiled by themselves: they have a name that another source of their target has too.
function(tutti_compile_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# tutti_library(NAME SOURCES a.cc ... [PUBLIC targets ...] [PRIVATE targets ...] [OWN_HEADERS])
# One static library of the house, tutti_NAME with the alias tutti::NAME, built with the project's flags.
# OWN_HEADERS: it does not share the precompiled header above.
#
# The quick sanitizer presets (CMakePresets.json) do not compile the libraries in TUTTI_BORROWED once more. They link
# those of the build folder TUTTI_BORROWED_FROM, which has to be built first. These libraries compute, without threads
# or memory that others write, so a sanitizer has least to see there; scripts/test --full compiles all with it.
function(tutti_library name)
  cmake_parse_arguments(arg "OWN_HEADERS" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  set(includes ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  if(name IN_LIST TUTTI_BORROWED)
    cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE folder)
    add_library(tutti_${name} STATIC IMPORTED GLOBAL)
    set_target_properties(tutti_${name} PROPERTIES
      IMPORTED_LOCATION ${TUTTI_BORROWED_FROM}/${folder}/libtutti_${name}.a)
    target_include_directories(tutti_${name} INTERFACE ${includes})
    list(TRANSFORM arg_PRIVATE REPLACE "(.+)" "$<LINK_ONLY:\\1>")
    target_link_libraries(tutti_${name} INTERFACE ${arg_PUBLIC} ${arg_PRIVATE})
  else()
    add_library(tutti_${name} STATIC ${arg_SOURCES})
    target_include_directories(tutti_${name} PUBLIC ${includes})
    target_link_libraries(tutti_${name} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE} tutti_flags)
    if(NOT arg_OWN_HEADERS)
      target_precompile_headers(tutti_${name} REUSE_FROM tutti_headers)
    endif()
  endif()
  add_library(tutti::${name} ALIAS tutti_${name})
endfunction()

# tutti_stands_alone(TARGET MAP): a shared library that exports what MAP names and needs the system's libraries only.
# What src/standalone defines is linked in front, so that the libraries behind it that would be asked for the same have
# nothing left to give, and --as-needed leaves them out.
function(tutti_stands_alone target map)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:tutti_standalone>)
  target_link_options(${target} PRIVATE -Wl,--as-needed -Wl,--gc-sections -Wl,--version-script=${map})
  # dlclose() leaves the library in memory, because threads of it may still run: a unique id's server lives for minutes.
  target_link_options(${target} PRIVATE -Wl,-z,nodelete)
  if(NOT TUTTI_SANITIZER) # whose library is linked into the program
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${map})
endfunction()
