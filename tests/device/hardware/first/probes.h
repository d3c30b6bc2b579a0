// The probes of gpu_first. Each one prints its findings, and returns an exit status: 0 as Tutti needs it, 1 not so, 3
// no GPU.
#pragma once

#include <span>

namespace tutti::test {

struct Probe {
  const char* name;
  int (*run)();
};

std::span<const Probe> probes();

// probes.cc
int machine();
int calls();
int memory_order();
// probe_waits.cc
int first_launch_while_a_stream_waits();
int waits_by_kernels();
int waits_on_device_memory();
int waits_on_pinned_memory();
int calls_while_a_kernel_runs();
int two_cooperative_launches();
// probe_rules.cc
int calls_without_a_context();
int calls_beside_a_capture();
// probe_processes.cc
int processes();
int time_slices();

}  // namespace tutti::test
