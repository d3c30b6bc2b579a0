# The compiler flags of all targets, and the functions that create targets.

add_library(tutti_flags INTERFACE)
target_compile_options(tutti_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast
  # GCC 12 reports overlaps in string concatenation that do not exist (GCC bug 105329), and -Wtsan warns about the
  # memory fences in Asio. clang-tidy reads these flags as well; GCC does not warn about a -Wno- option that it does
  # not know.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-unknown-warning-option>
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>
  $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>  # so that ccache works with precompiled headers
  -ffp-contract=off  # no automatic fused multiply-add, so that results have the same bits on every machine
  $<$<BOOL:${TUTTI_WERROR}>:-Werror>)
if(TUTTI_SANITIZER)
  target_compile_options(tutti_flags INTERFACE -fsanitize=${TUTTI_SANITIZER} -fno-omit-frame-pointer
    -fno-sanitize-recover=all
    # The check "vptr" opens a pipe for each object that it checks. If a test has used up all file descriptors, the pipe
    # cannot be opened, and the check reports an error although the object is correct.
    -fno-sanitize=vptr
    # Test sources are not checked for undefined behaviour, because this doubles the time to compile them.
    $<$<BOOL:$<TARGET_PROPERTY:TUTTI_TEST>>:-fno-sanitize=undefined>)
  target_link_options(tutti_flags INTERFACE -fsanitize=${TUTTI_SANITIZER})
endif()
if(TUTTI_FUZZERS)
  target_compile_options(tutti_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# A precompiled header with the headers that most sources include. Without it the compiler needs an additional second
# for each file. All sources still include the headers that they use; scripts/test --full checks this.
set(tutti_no_code ${CMAKE_BINARY_DIR}/precompiled.cc)  # a target with a precompiled header needs at least one source
file(CONFIGURE OUTPUT ${tutti_no_code} CONTENT "")
add_library(tutti_headers OBJECT ${tutti_no_code})
target_link_libraries(tutti_headers PRIVATE tutti_flags fmt::fmt)
target_precompile_headers(tutti_headers PRIVATE <fmt/format.h> <fmt/ranges.h> <algorithm> <array> <atomic> <charconv>
  <chrono> <cstdint> <cstring> <functional> <map> <memory> <mutex> <optional> <span> <string> <string_view> <vector>)

# tutti_compile_apart(a.cc ...): compiles these sources of the current folder separately. The presets compile about
# ten sources of a target as one file (CMake's "unity build"), because parsing headers is most of the cost of a build.
# Then names in anonymous namespaces can collide. Use this function for a source with a name that another source of
# its target has, too.
function(tutti_compile_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# tutti_library(NAME SOURCES a.cc ... [PUBLIC targets ...] [PRIVATE targets ...] [OWN_HEADERS])
# Defines a static library tutti_NAME with the alias tutti::NAME, built with the project's flags. With OWN_HEADERS it
# does not use the precompiled header above.
#
# The quick sanitizer presets (CMakePresets.json) do not compile the libraries in TUTTI_BORROWED. They link those of
# the build folder TUTTI_BORROWED_FROM, which must be built first. These libraries only compute, without threads and
# without memory that other libraries write, so sanitizers are least useful for them. scripts/test --full compiles all
# libraries with sanitizers.
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

# tutti_stands_alone(TARGET MAP): makes TARGET a shared library that exports only the symbols named in MAP, and needs
# only libraries of the system. The objects of src/standalone are linked first. They define the symbols that other
# libraries (fmt, Highway) would provide, so --as-needed removes these libraries.
function(tutti_stands_alone target map)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:tutti_standalone>)
  target_link_options(${target} PRIVATE -Wl,--as-needed -Wl,--gc-sections -Wl,--version-script=${map})
  # dlclose() must leave the library in memory, because its threads may still run. For example, the rendezvous server
  # of a unique id runs for minutes.
  target_link_options(${target} PRIVATE -Wl,-z,nodelete)
  if(NOT TUTTI_SANITIZER)  # the library of a sanitizer is linked into the program, so its symbols are not defined here
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${map})
endfunction()
