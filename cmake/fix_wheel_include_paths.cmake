# For builds against the ROS 2 wheels, passed as -DCMAKE_PROJECT_INCLUDE=<this file>.
#
# The wheels' exported CMake targets name include folders of the machine that built them, and CMake
# stops at a folder that does not exist. Once all targets are known, drop the folders that are not
# there; the wheels themselves stay untouched.
function(tr_vam_drop_missing_include_paths)
  get_property(targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(folders ${target} INTERFACE_INCLUDE_DIRECTORIES)
    if(folders)
      set(kept "")
      foreach(folder IN LISTS folders)
        # A generator expression cannot be judged here.
        if(folder MATCHES "\\$<" OR EXISTS "${folder}")
          list(APPEND kept "${folder}")
        endif()
      endforeach()
      set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${kept}")
    endif()
  endforeach()
endfunction()
cmake_language(DEFER CALL tr_vam_drop_missing_include_paths)
