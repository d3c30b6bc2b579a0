// The name of this boot of this machine, by which processes find out that they run on the same one. Any thread.
#pragma once

#include <string>

#include "tutti/result.h"

namespace tutti {

struct BootId {
  std::string name;
  bool is_proof;  // processes with the same name run on the same boot of the same machine
};

// The kernel's random number of this boot. Some sandboxes do not show it (gVisor, a container that masks parts of
// /proc). The name is then "unknown boot of HOST", with the host's name: equal on all processes of one machine, but
// not proof that two processes share a machine. Errors: kSystem if no descriptor or memory is left to read it: a
// made-up name would split the ranks of one machine.
Result<BootId> boot_id();

}  // namespace tutti
