# Checks which nvcc can build the device code, and for which GPU architectures. It needs no project, so that tests can
# run it with cmake -P.

# The requirements of entry.cu. nvcc 12.8 is the first version with --compress-mode.
set(TUTTI_LEAST_NVCC 12.8)
set(TUTTI_KNOWN_ARCHITECTURES 75 80 86 89 90 100 120)

# tutti_ask_nvcc(NVCC VERSION CODES WRONG): stores the version of NVCC in the variable VERSION, and the numbers of the
# architectures that it supports in CODES. If it cannot be used, stores the reason in WRONG.
function(tutti_ask_nvcc nvcc version_name codes_name wrong_name)
  set(${wrong_name} "" PARENT_SCOPE)
  set(${version_name} "" PARENT_SCOPE)
  set(${codes_name} "" PARENT_SCOPE)
  execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE status TIMEOUT 60)
  if(NOT status EQUAL 0 OR NOT said MATCHES "release ([0-9]+\\.[0-9]+)")
    string(STRIP "${said}" said)
    set(${wrong_name} "${nvcc} --version ends with '${status}' and says '${said}'" PARENT_SCOPE)
    return()
  endif()
  set(version ${CMAKE_MATCH_1})
  set(${version_name} ${version} PARENT_SCOPE)
  if(version VERSION_LESS TUTTI_LEAST_NVCC)
    set(${wrong_name} "${nvcc} is of CUDA ${version}, and ${TUTTI_LEAST_NVCC} is the oldest that can build it"
      PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${nvcc} --list-gpu-code OUTPUT_VARIABLE said ERROR_VARIABLE errors RESULT_VARIABLE status
    TIMEOUT 60)
  string(REGEX MATCHALL "sm_[0-9]+" codes "${said}")
  list(TRANSFORM codes REPLACE "sm_" "")
  if(NOT status EQUAL 0 OR NOT codes)
    string(STRIP "${said}${errors}" said)
    set(${wrong_name} "${nvcc} --list-gpu-code ends with '${status}' and says '${said}'" PARENT_SCOPE)
    return()
  endif()
  set(${codes_name} ${codes} PARENT_SCOPE)
endfunction()

# tutti_choose_architectures(WANTED NVCC VERSION CODES FOUND WRONG): stores in FOUND the architectures to build for.
# If WANTED is not empty, it has the architectures that the user asked for; nvcc must support all of them. Otherwise
# these are the architectures in TUTTI_KNOWN_ARCHITECTURES that nvcc supports. If there are none, stores the reason in
# WRONG.
function(tutti_choose_architectures wanted nvcc version codes found_name wrong_name)
  set(found)
  set(missing)
  set(candidates ${wanted})
  if(NOT wanted)
    set(candidates ${TUTTI_KNOWN_ARCHITECTURES})
  endif()
  foreach(architecture ${candidates})
    if(architecture IN_LIST codes)
      list(APPEND found ${architecture})
    else()
      list(APPEND missing ${architecture})
    endif()
  endforeach()
  set(wrong "")
  list(JOIN codes " " known)
  if(missing)
    list(JOIN missing " " names)
    set(lacks "${nvcc} of CUDA ${version} does not know sm_${names}; it knows ${known}")
    if(wanted)
      set(wrong "TUTTI_CUDA_ARCHITECTURES: ${lacks}")
    elseif(NOT found)
      set(wrong "${lacks}")
    else()
      message(STATUS "Device code: left out, since ${lacks}")
    endif()
  endif()
  set(${found_name} ${found} PARENT_SCOPE)
  set(${wrong_name} "${wrong}" PARENT_SCOPE)
endfunction()

# -fmad=false gives the same bits as on the host. -use_fast_math is not used for the same reason.
set(TUTTI_NVCC_FLAGS -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -Werror all-warnings)

# tutti_device_code(IMAGE SOURCE ARCHITECTURES): adds the command that builds the file IMAGE, one compressed fatbin with
# the code of SOURCE for each of ARCHITECTURES, and with PTX for the newest one. A target must depend on IMAGE. The file
# IMAGE.resources tells the registers, the stack and the spills of each function.
function(tutti_device_code image source architectures)
  set(codes)
  foreach(architecture ${architectures})
    list(APPEND codes -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  list(GET architectures -1 newest)
  list(APPEND codes -gencode arch=compute_${newest},code=compute_${newest})
  set(with_log [[log=$1; shift; "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }]])
  add_custom_command(
    OUTPUT ${image}
    BYPRODUCTS ${image}.resources
    COMMAND sh -c "${with_log}" sh ${image}.resources
      ${TUTTI_NVCC} --fatbin ${TUTTI_NVCC_FLAGS} --resource-usage --compress-mode=size -t 2 ${codes}
      -I ${PROJECT_SOURCE_DIR} -I ${PROJECT_SOURCE_DIR}/include -I ${PROJECT_SOURCE_DIR}/src
      -MD -MF ${image}.d -MT ${image} -o ${image} ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    DEPENDS ${source}
    DEPFILE ${image}.d
    COMMENT "Building device code of ${source} for sm_${architectures} and PTX"
    VERBATIM)
endfunction()

# tutti_ptx(PTX SOURCE ARCHITECTURE): adds the command that compiles SOURCE into the file PTX, as tutti_device_code()
# does for that architecture. A target must depend on PTX.
function(tutti_ptx ptx source architecture)
  add_custom_command(
    OUTPUT ${ptx}
    COMMAND ${TUTTI_NVCC} --ptx ${TUTTI_NVCC_FLAGS} -arch=compute_${architecture}
      -I ${PROJECT_SOURCE_DIR} -I ${PROJECT_SOURCE_DIR}/include -I ${PROJECT_SOURCE_DIR}/src
      -MD -MF ${ptx}.d -MT ${ptx} -o ${ptx} ${source}
    DEPENDS ${source}
    DEPFILE ${ptx}.d
    COMMENT "Compiling ${source} into PTX for compute_${architecture}"
    VERBATIM)
endfunction()
