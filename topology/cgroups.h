// The cgroups that contain this process. The kernel can limit the memory and the CPU time of each of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti {

struct Cgroup {
  int version = 2;     // 1 or 2: the version of cgroups, which determines the names of the files
  std::string path;    // the name of the cgroup, for example "/job/step"
  std::string folder;  // its folder, which contains the files with its limits
};

// Returns the cgroups that contain this process: those of version 2, and those of version 1 with `controller` ("memory"
// or "cpu"). Within a version, each one is followed by the one that contains it. In a container, the paths may name
// cgroups outside the container, whose folders do not exist here; the container's own cgroup is then the mounted folder
// itself, which is the last one of its version. Reads /proc/self/cgroup, and never fails: if the file cannot be read,
// there are no cgroups. `root`, the folder of the kernel's files, is "/" except in tests. May be called by any thread.
std::vector<Cgroup> cgroups_of_this_process(std::string_view controller, const std::string& root = "/");

}  // namespace tutti
