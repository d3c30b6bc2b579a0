// The default parameters, with the source of most numbers: measured, published or guessed.
#include "model/parameters.h"

#include <array>

#include "base/assert.h"

namespace tutti {
namespace {

constexpr std::array<std::string_view, kLevels> kLevelNames = {"memory", "nvlink", "pcie", "nic", "spine"};
constexpr std::array<std::string_view, kProtocols> kProtocolNames = {"simple", "ll", "ll128", "window"};

// Adds the costs of RDMA with 8 NICs of 400 Gbit/s (NDR), one for each of 8 ranks. Bandwidth: such adapters reach
// 47 GB/s of the 50 on the wire (nccl-tests issue #290: 46 to 48). Latency: a write of a few bytes between machines
// takes 2 to 3 us (guessed from data sheets). post_us: waking a proxy thread, and ringing a doorbell (guessed).
void add_rdma(Parameters& p) {
  const MessageCost nic{.post_us = 0.5, .latency_us = 3, .gap_us = 0.2, .gbytes_per_s = 47, .channel_gbytes_per_s = 0};
  p.cost(Level::kNic, Protocol::kSimple) = nic;
  p.cost(Level::kNic, Protocol::kLl) = nic;
  p.cost(Level::kNic, Protocol::kLl).gbytes_per_s = nic.gbytes_per_s / 2;  // half of the bytes are flags
  p.cost(Level::kNic, Protocol::kLl128) = nic;
  p.cost(Level::kNic, Protocol::kLl128).gbytes_per_s = nic.gbytes_per_s * 120 / 128;
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl, Protocol::kLl128}) {
    p.cost(Level::kSpine, protocol) = p.cost(Level::kNic, protocol);
    p.cost(Level::kSpine, protocol).latency_us += 1;  // two more switches of 0.3 to 0.5 us (guessed)
  }
}

// The numbers of one generation of GPUs. Bandwidths are in GB/s, times in microseconds.
struct Generation {
  // Guessed. It lies between the base latencies in NCCL 2.30, graph/tuning.cc: 6.6 us (LL) and 14 us (LL128).
  double launch_us;
  // the bandwidth that rings reach with all NVLinks of one GPU together: the bus bandwidth of nccl-tests
  double nvlink_gbytes_per_s;
  // of one GPU: 24 on PCIe 4, 48 on PCIe 5, NVIDIA's published peak bus bandwidths
  double pcie_gbytes_per_s;
  // NVLS: bytes of a long all-reduce divided by its time; 0: the switch cannot add
  double switch_gbytes_per_s;
  // of one GPU's own memory, as published by the vendor
  double memory_gbytes_per_s;
};

// Sources, as bus bandwidths of an all-reduce of 8 GPUs in GB/s. A100: 232 to 235, measured and published; its
// switch cannot add. H100: 367 to 370 by rings; 480 in the switch, which is 275 of payload, because the bus
// bandwidth of 8 GPUs is 7/4 of it (nccl-tests issue #212). B200: 682 by rings, and 838 in the switch, which is 479
// of payload.
constexpr Generation kA100 = {8.4, 235, 24, 0, 1555};
constexpr Generation kH100 = {8.4, 370, 48, 275, 3350};
constexpr Generation kB200 = {8.4, 682, 48, 479, 8000};

}  // namespace

bool has_costs(const Parameters& parameters) { return parameters.costs != Parameters().costs; }

Parameters default_host_parameters(std::uint32_t cores) {
  Parameters p;
  p.name = "host";
  p.source = "defaults";
  p.cores = cores;
  // docs/results/2026-11-21-host-speed.md, on two virtual cores. launch_us: preparing a call takes 118 ns, and the
  // engine and the mailboxes take about as long again. step_us: a step takes 86 ns. handover_us: switching a core
  // takes 526 ns. A cache line travels from core to core in 162 ns, which is the latency of kLl below.
  p.launch_us = 0.25;
  p.step_us = 0.09;
  p.handover_us = 0.55;
  p.cost(Level::kMemory, Protocol::kSimple) = {
      .post_us = 0.1, .latency_us = 0.35, .gap_us = 0, .gbytes_per_s = 12, .channel_gbytes_per_s = 0};
  // On the host, kLl stands for the mailboxes (ShmMailboxes), which are used for the shortest calls
  // (docs/decisions/0010). With them, 2 ranks exchange 8 bytes in 0.28 us.
  p.cost(Level::kMemory, Protocol::kLl) = {
      .post_us = 0.02, .latency_us = 0.16, .gap_us = 0, .gbytes_per_s = 8, .channel_gbytes_per_s = 0};
  // docs/results/2026-11-21-all-reduce.md: an all-reduce of 16 MiB in registered memory, in place, takes 2 ranks
  // 680 us. Each rank loads 8 MiB from the other rank's memory and stores 8 MiB to it, which is 25 GB/s.
  p.cost(Level::kMemory, Protocol::kWindow) = {
      .post_us = 0.1, .latency_us = 0.35, .gap_us = 0, .gbytes_per_s = 25, .channel_gbytes_per_s = 0};
  // A system call takes 1 us before it copies (docs/decisions/0012).
  p.attach_us = 1;
  // This is for long calls, which run at the speed of the memory. docs/decisions/0012 states no bandwidth. Its
  // all-gather of 1 MiB by 2 ranks, which takes 27 us, is faster than this value.
  p.attach_gbytes_per_s = 10;
  p.reduce_gbytes_per_s = 22;  // docs/results/2026-11-21-all-reduce.md, kernels, 64 MiB
  p.copy_gbytes_per_s = 14;    // docs/results/2026-11-21-all-reduce.md, too
  // Over loopback: 2.6 us per sendmsg (docs/results/2026-11-21-host-speed.md), 3.8 us one way and 5 to 8 GB/s
  // (docs/results/2026-11-21-tcp.md). post_us is the first of these. A real network has a longer latency and is slower
  // than loopback, so latency_us (10 us) and the bandwidth (2.9 GB/s, about 25 Gbit/s) are guesses.
  p.cost(Level::kNic, Protocol::kSimple) = {
      .post_us = 2.6, .latency_us = 10, .gap_us = 0, .gbytes_per_s = 2.9, .channel_gbytes_per_s = 0};
  p.cost(Level::kSpine, Protocol::kSimple) = p.cost(Level::kNic, Protocol::kSimple);
  p.cost(Level::kSpine, Protocol::kSimple).latency_us += 1;
  p.slot_bytes = 128 * 1024;  // kSlotBytes, the general default of TUTTI_SLOT_BYTES
  p.slots = 4;                // the default of TUTTI_SLOTS
  p.channels = 1;             // one copy of the plan, because a rank is one thread
  return p;
}

Parameters default_gpu_parameters(std::int32_t capability) {
  TUTTI_ASSERT(capability > 0);
  const Generation& generation = capability >= 100 ? kB200 : (capability >= 90 ? kH100 : kA100);
  Parameters p = default_host_parameters(0);
  p.name = capability >= 100 ? "gpu sm_100" : (capability >= 90 ? "gpu sm_90" : "gpu sm_80");
  p.launch_us = generation.launch_us;
  // two barriers of a thread block, and a read of the flags (guessed)
  p.step_us = 0.2;
  p.handover_us = 0;
  // Latencies of one step of a ring in NCCL 2.30, graph/tuning.cc: NVLink 0.6 us (LL), 1.9 us (LL128), 3.4 us
  // (simple); PCIe 1.0 us, 2.5 us, 5.7 us.
  const double nvlink = generation.nvlink_gbytes_per_s;
  // About twelve channels, each in a thread block, saturate the links (NCCL uses 16 to 24 channels).
  const double channel = nvlink / 12;
  p.cost(Level::kNvLink, Protocol::kSimple) = {0, 3.4, 0, nvlink, channel};
  p.cost(Level::kNvLink, Protocol::kLl) = {0, 0.6, 0, nvlink / 2, channel / 2};
  p.cost(Level::kNvLink, Protocol::kLl128) = {0, 1.9, 0, nvlink * 120 / 128, channel * 120 / 128};
  p.cost(Level::kNvLink, Protocol::kWindow) = {0, 3.4, 0, nvlink, channel};
  const double pcie = generation.pcie_gbytes_per_s;
  p.cost(Level::kPcie, Protocol::kSimple) = {0, 5.7, 0, pcie, 0};
  p.cost(Level::kPcie, Protocol::kLl) = {0, 1.0, 0, pcie / 2, 0};
  p.cost(Level::kPcie, Protocol::kLl128) = {0, 2.5, 0, pcie * 120 / 128, 0};
  p.cost(Level::kPcie, Protocol::kWindow) = {0, 5.7, 0, pcie, 0};
  add_rdma(p);
  // adding one operand to another takes two loads and a store in the GPU's own memory
  p.reduce_gbytes_per_s = generation.memory_gbytes_per_s / 3;
  p.copy_gbytes_per_s = generation.memory_gbytes_per_s / 2;
  p.switch_gbytes_per_s = generation.switch_gbytes_per_s;
  // 25 us is NCCL's latency of NVLS (NCCL 2.30, graph/tuning.cc)
  p.switch_latency_us = generation.switch_gbytes_per_s > 0 ? 25 : 0;
  p.attach_us = 0;
  p.attach_gbytes_per_s = 0;
  p.cores = 0;
  p.slot_bytes = 512 * 1024;  // NCCL's slot of the simple protocol
  p.slots = 8;
  p.channels = 16;
  return p;
}

std::string_view to_string(Level level) {
  TUTTI_ASSERT(static_cast<std::size_t>(level) < kLevels);
  return kLevelNames[static_cast<std::size_t>(level)];
}

std::string_view to_string(Protocol protocol) {
  TUTTI_ASSERT(static_cast<std::size_t>(protocol) < kProtocols);
  return kProtocolNames[static_cast<std::size_t>(protocol)];
}

}  // namespace tutti
