# lockstep_cuda_kernels(<name> file.cu...): one set of kernels, compiled up to three times.
#
#   <name>_sim      by the C++ compiler, for the simulated device of tests/simgpu
#   <name>_checked  the same, every load and store reported to the simulator's checker
#   <name>_nvcc     by nvcc for GPUs: sm_80, sm_90, newer ones by PTX; only where nvcc was found. Then also
#                   <name>_nvcc.ptxas in the build folder, ptxas' table of registers, spills and shared memory.
#
# The first two are object libraries, the third a static library. A .cu includes what it needs as
# "lockstep/..." or "simgpu/...".

set(LOCKSTEP_CUDA_ARCHITECTURES -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90
                                -gencode=arch=compute_90,code=compute_90)

function(lockstep_cuda_kernels name)
  set(includes ${PROJECT_BINARY_DIR}/include ${PROJECT_SOURCE_DIR}/tests)
  list(TRANSFORM includes PREPEND -I OUTPUT_VARIABLE include_flags)
  set(wrappers)
  set(objects)
  set(tables)
  foreach(source IN LISTS ARGN)
    get_filename_component(source ${source} ABSOLUTE)
    get_filename_component(stem ${source} NAME_WE)
    # A wrapper of one line, so that the language of the .cu itself is nobody's business; debugger and gcov still
    # name the lines of the .cu.
    set(wrapper ${CMAKE_CURRENT_BINARY_DIR}/${name}/${stem}.cpp)
    file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${source}\"\n" @ONLY)
    list(APPEND wrappers ${wrapper})
    if(CUDAToolkit_NVCC_EXECUTABLE)
      set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}/${stem}.cu.o)
      add_custom_command(
        OUTPUT ${object}
        BYPRODUCTS ${object}.ptxas
        COMMAND sh ${PROJECT_SOURCE_DIR}/cmake/nvcc.sh ${object}.ptxas ${CUDAToolkit_NVCC_EXECUTABLE}
                -ccbin ${CMAKE_CXX_COMPILER} -std=c++20 -O3 -Xcompiler=-fPIC ${LOCKSTEP_CUDA_ARCHITECTURES} -Xptxas=-v
                ${include_flags} -MD -MF ${object}.d -c ${source} -o ${object}
        DEPENDS ${source} ${PROJECT_SOURCE_DIR}/cmake/nvcc.sh
        DEPFILE ${object}.d
        COMMENT "nvcc ${stem}.cu"
        VERBATIM)
      list(APPEND objects ${object})
      list(APPEND tables ${object}.ptxas)
    endif()
  endforeach()

  foreach(flavour sim checked)
    add_library(${name}_${flavour} OBJECT ${wrappers})
    target_include_directories(${name}_${flavour} PRIVATE ${includes})
    target_include_directories(${name}_${flavour} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    target_link_libraries(${name}_${flavour} PRIVATE lockstep_flags)
    target_compile_options(${name}_${flavour} PRIVATE -include simgpu/device.h -O2 -g1 -Wno-unknown-pragmas)
  endforeach()
  # The compiler's calls go to functions of the simulator: ThreadSanitizer itself is never linked.
  target_compile_options(${name}_checked PRIVATE -fsanitize=thread --param=tsan-instrument-func-entry-exit=0)

  if(objects)
    set(table ${CMAKE_CURRENT_BINARY_DIR}/${name}_nvcc.ptxas)
    add_custom_command(OUTPUT ${table} COMMAND cat ${tables} > ${table} DEPENDS ${objects})
    add_library(${name}_nvcc STATIC ${objects} ${table})
    set_target_properties(${name}_nvcc PROPERTIES LINKER_LANGUAGE CXX)
  endif()
endfunction()
