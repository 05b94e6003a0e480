# The planner alone (TRIREME_META_ONLY=ON): the meta device, closed forms and the simulator, for runs on GPUs. It needs
# fmt, nlohmann-json, xxHash, CLI11 and toml++, and neither threads nor OpenMP, oneDNN, Highway and MPI.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)

# What starts threads or measures kernels.
set(meta_only_without runtime/rank_threads measure/calibrate data/prefetch)
set(meta_only_cli main common plan plan_subject search search_here estimate estimate_roofline estimate_walls simulate
  simulate_layout simulate_run score config completion usage used_keys disturbance known_routing_option auto_layout
  disk_room)

add_executable(trireme)
foreach(folder base mesh schedule trace spec cost tensor program sim device device/meta device/no_cpu device/cuda comm
        comm/meta comm/watch comm/wrap model optim checkpoint data runtime catalog measure
        forecast estimate published search cli cli/meta_only)
  if(folder STREQUAL "cli")
    list(TRANSFORM meta_only_cli REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/src/cli/\\1.cc" OUTPUT_VARIABLE sources)
  elseif(folder STREQUAL "comm/watch")
    set(sources ${CMAKE_SOURCE_DIR}/src/comm/watch/pulse.cc)
  else()
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${folder}/*.cc)
  endif()
  foreach(file IN LISTS meta_only_without)
    list(REMOVE_ITEM sources ${CMAKE_SOURCE_DIR}/src/${file}.cc)
  endforeach()
  string(REPLACE "/" "_" name meta_${folder})
  add_library(${name} OBJECT ${sources})
  if(folder STREQUAL "catalog")
    trireme_plan_data(${name})
  endif()
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE fmt::fmt nlohmann_json::nlohmann_json PkgConfig::XXHASH)
  target_compile_definitions(${name} PRIVATE TRIREME_VERSION="${PROJECT_VERSION}" TRIREME_HAS_MPI=0 TRIREME_HAS_CUDA=0)
  # Some files of these rooms have OpenMP's pragmas.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O2> -Wno-unknown-pragmas)
  target_sources(trireme PRIVATE $<TARGET_OBJECTS:${name}>)
endforeach()
set_target_properties(trireme PROPERTIES LINKER_LANGUAGE CXX)
target_link_libraries(trireme PRIVATE fmt::fmt PkgConfig::XXHASH)
