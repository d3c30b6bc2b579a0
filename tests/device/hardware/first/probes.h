// The probes of gpu_first. Each one prints its findings.
#pragma once

#include <span>

namespace tutti::test {

struct Probe {
  const char* name;
  int (*run)();  // returns an exit status: 0 as Tutti needs it, 1 not so, 3 no GPU
};

std::span<const Probe> probes();

}  // namespace tutti::test
