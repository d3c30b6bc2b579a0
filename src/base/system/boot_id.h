// BootId: identifies this boot of this machine, so that processes can find out whether they run on the same machine.
// May be called from any thread.
#pragma once

#include <string>

#include "tutti/result.h"

namespace tutti {

struct BootId {
  std::string name;
  bool is_proof;  // true: two processes with the same name are on the same boot of the same machine
};

// Returns the random number that the kernel generated at this boot. Some sandboxes hide it (for example gVisor, or a
// container that masks parts of /proc). The name is then "unknown boot of HOST", with the host name: it is the same for
// all processes of one machine, but does not prove that two processes share a machine. Errors: kSystem if the process
// or the machine is out of descriptors or memory. This is an error because a substitute name would split the ranks of
// one machine.
Result<BootId> boot_id();

}  // namespace tutti
