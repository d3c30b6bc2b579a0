# tutti_library(NAME SOURCES a.cc ... [PUBLIC targets ...] [PRIVATE targets ...])
# One static library of the house, tutti_NAME with the alias tutti::NAME, built with the project's flags.

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

# tutti_compile_apart(a.cc ...): the presets compile about ten sources of a target as one file (CMake's "unity build"),
# because parsing headers is most of the cost of a build. Names in anonymous namespaces then meet. These sources of the
# current folder are compiled by themselves: they have a name that another source of their target has too.
function(tutti_compile_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

function(tutti_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(tutti_${name} STATIC ${arg_SOURCES})
  add_library(tutti::${name} ALIAS tutti_${name})
  target_include_directories(tutti_${name} PUBLIC
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_link_libraries(tutti_${name} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE} tutti_flags)
endfunction()

# tutti_stands_alone(TARGET MAP): a shared library that exports what MAP names and needs the system's libraries only.
# What src/standalone defines is linked in front, so that the libraries behind it that would be asked for the same have
# nothing left to give, and --as-needed leaves them out.
function(tutti_stands_alone target map)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:tutti_standalone>)
  target_link_options(${target} PRIVATE -Wl,--as-needed -Wl,--gc-sections -Wl,--version-script=${map})
  if(NOT TUTTI_SANITIZER) # whose library is linked into the program
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${map})
endfunction()
