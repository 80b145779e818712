# liboctet: what include/octet declares, as a shared library for programs outside of the tree, with a package for
# find_package(octet) and one for pkg-config. Everything else in it is local (liboctet.map).
include(GNUInstallDirs)
add_library(octet_library SHARED $<TARGET_OBJECTS:octet_infer>)
target_link_libraries(octet_library PRIVATE octet_flags octet_infer)
target_include_directories(octet_library INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(octet_library INTERFACE cxx_std_20)
set(_map ${CMAKE_CURRENT_LIST_DIR}/liboctet.map)
target_link_options(octet_library PRIVATE -Wl,--version-script,${_map} -Wl,--no-undefined)
set_target_properties(octet_library PROPERTIES OUTPUT_NAME octet EXPORT_NAME octet LINK_DEPENDS ${_map}
                                               VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})

include(CMakePackageConfigHelpers)
set(_package ${CMAKE_INSTALL_LIBDIR}/cmake/octet)
set(_generated ${PROJECT_BINARY_DIR}/package)
write_basic_package_version_file(${_generated}/octetConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/octetConfig.cmake.in ${_generated}/octetConfig.cmake
                              INSTALL_DESTINATION ${_package})
file(RELATIVE_PATH include_from_lib /${CMAKE_INSTALL_LIBDIR} /${CMAKE_INSTALL_INCLUDEDIR})
configure_file(${CMAKE_CURRENT_LIST_DIR}/octet.pc.in ${_generated}/octet.pc @ONLY)
install(TARGETS octet_library EXPORT octetTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development)
install(EXPORT octetTargets NAMESPACE octet:: DESTINATION ${_package} COMPONENT development)
install(FILES ${_generated}/octetConfig.cmake ${_generated}/octetConfigVersion.cmake DESTINATION ${_package}
        COMPONENT development)
install(FILES ${_generated}/octet.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
