# Builds and runs the consumer program: cmake -D WAY=find_package|add_subdirectory -D LOCKSTEP_SOURCE=... -P run.cmake
set(work ${LOCKSTEP_BINARY}/consumer_${WAY})
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${ARGV} failed with code ${code}:\n${output}")
  endif()
  set(output ${output} PARENT_SCOPE)
endfunction()

if(WAY STREQUAL find_package)
  run(${CMAKE_COMMAND} --install ${LOCKSTEP_BINARY} --prefix ${work}/prefix)
  set(flags -DCMAKE_PREFIX_PATH=${work}/prefix)
else()
  # Unoptimised, because the whole library is built again.
  set(flags -DLOCKSTEP_SOURCE=${LOCKSTEP_SOURCE} -DLOCKSTEP_ONEDNN=${LOCKSTEP_ONEDNN} -DCMAKE_BUILD_TYPE=Debug
            -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
endif()
run(${CMAKE_COMMAND} -G Ninja -S ${CMAKE_CURRENT_LIST_DIR} -B ${work}/build ${flags})
run(${CMAKE_COMMAND} --build ${work}/build --target consumer)
run(${work}/build/consumer)
if(NOT output MATCHES "gradient 21")
  message(FATAL_ERROR "the consumer printed '${output}', expected 'gradient 21'")
endif()
