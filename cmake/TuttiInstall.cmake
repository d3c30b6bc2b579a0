# The files that `cmake --install` installs: libtutti.so, libnccl.so.2 and libtutti_heap.so, the public headers, the
# tutti tool, a CMake package so that find_package(tutti) provides tutti::tutti and tutti::nccl, and tutti.pc for
# pkg-config. Included last, because it uses the targets.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)

install(TARGETS tutti_shared EXPORT tutti-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET tutti_nccl_shared)
  install(TARGETS tutti_nccl_shared EXPORT tutti-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()
install(TARGETS tutti_heap_shared EXPORT tutti-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS tutti_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET tutti_train)
  install(TARGETS tutti_train RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tutti DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/include/nccl.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT tutti-targets NAMESPACE tutti:: DESTINATION ${package_dir})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tutti-config.cmake.in ${PROJECT_BINARY_DIR}/tutti-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tutti-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tutti-config.cmake ${PROJECT_BINARY_DIR}/tutti-config-version.cmake
  DESTINATION ${package_dir})

# The paths in the file for pkg-config are relative to the file itself if they are inside the prefix, so that an
# installation can be moved.
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
set(pc_prefix ${CMAKE_INSTALL_PREFIX})
if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  file(RELATIVE_PATH pc_prefix /${pc_dir} /)
  string(REGEX REPLACE "^(.*)/$" "\${pcfiledir}/\\1" pc_prefix ${pc_prefix})
endif()
foreach(place LIB INCLUDE)
  string(TOLOWER pc_${place}dir variable)
  set(${variable} ${CMAKE_INSTALL_${place}DIR})
  if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_${place}DIR})
    string(PREPEND ${variable} "\${prefix}/")
  endif()
endforeach()
configure_file(${PROJECT_SOURCE_DIR}/cmake/tutti.pc.in ${PROJECT_BINARY_DIR}/tutti.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tutti.pc DESTINATION ${pc_dir})
