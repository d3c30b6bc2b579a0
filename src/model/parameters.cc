// The default parameters, with the source of each number: measured, published or guessed.
#include "model/parameters.h"

#include <array>

#include "base/assert.h"

namespace tutti {
namespace {

constexpr std::array<std::string_view, kLevels> kLevelNames = {"memory", "nvlink", "pcie", "nic", "spine"};
constexpr std::array<std::string_view, kProtocols> kProtocolNames = {"simple", "ll", "ll128", "window"};

// RDMA at 8 x 400 Gbit/s, one NIC for each of 8 ranks. NDR adapters reach 47 GB/s of the 50 on the wire
// (nccl-tests #290: 46 to 48). Latency: a write of a few bytes between machines takes 2 to 3 us (guessed from data
// sheets). Post: waking a proxy thread, and a doorbell (guessed).
void add_rdma(Parameters& p) {
  const MessageCost nic{.post_us = 0.5, .latency_us = 3, .gap_us = 0.2, .gbytes_per_s = 47, .channel_gbytes_per_s = 0};
  p.cost(Level::kNic, Protocol::kSimple) = nic;
  p.cost(Level::kNic, Protocol::kLl) = nic;
  p.cost(Level::kNic, Protocol::kLl).gbytes_per_s = nic.gbytes_per_s / 2;  // half of every line consists of flags
  p.cost(Level::kNic, Protocol::kLl128) = nic;
  p.cost(Level::kNic, Protocol::kLl128).gbytes_per_s = nic.gbytes_per_s * 120 / 128;
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl, Protocol::kLl128}) {
    p.cost(Level::kSpine, protocol) = p.cost(Level::kNic, protocol);
    p.cost(Level::kSpine, protocol).latency_us += 1;  // two more switches, 0.3 to 0.5 us each (guessed)
  }
}

// Parameters that differ between generations of GPUs.
struct Generation {
  // Guessed within the base latencies of NCCL 2.30 graph/tuning.cc: 6.6 (LL) to 14 (LL128).
  double launch_us;
  double nvlink_gbytes_per_s;  // of one GPU: the part of its links' sum that rings reach
  double pcie_gbytes_per_s;    // 24 on PCIe 4, 48 on PCIe 5: NVIDIA's published peak bus bandwidths
  double switch_gbytes_per_s;  // NVLS: bytes of an all-reduce divided by its time
  double memory_gbytes_per_s;  // of one GPU's memory, as published by the vendor
};

// A100: 232 to 235 GB/s bus bandwidth of 8, measured and published; no multicast. H100: 367 to 370 by rings;
// all-reduce in the switch 480, which is 275 GB/s of payload (nccl-tests #212). B200: 682 and 838.
constexpr Generation kA100 = {8.4, 235, 24, 0, 1555};
constexpr Generation kH100 = {8.4, 370, 48, 275, 3350};
constexpr Generation kB200 = {8.4, 682, 48, 479, 8000};

}  // namespace

Parameters default_host_parameters(std::uint32_t cores) {
  Parameters p;
  p.name = "host";
  p.source = "defaults";
  p.cores = cores;
  // docs/results/2026-11-21-host-speed.md, two virtual cores: preparation takes 118 ns, and the engine and the
  // mailboxes about as much again. A cache line between cores takes 162 ns, switching a core 526 ns, and a step 86
  // ns.
  p.launch_us = 0.25;
  p.step_us = 0.09;
  p.handover_us = 0.55;
  p.cost(Level::kMemory, Protocol::kSimple) = {
      .post_us = 0.1, .latency_us = 0.35, .gap_us = 0, .gbytes_per_s = 12, .channel_gbytes_per_s = 0};
  // ShmMailboxes, which are used for the shortest calls (docs/decisions/0010). 2 ranks exchange 8 bytes in 0.28
  // us.
  p.cost(Level::kMemory, Protocol::kLl) = {
      .post_us = 0.02, .latency_us = 0.16, .gap_us = 0, .gbytes_per_s = 8, .channel_gbytes_per_s = 0};
  // docs/results/2026-11-21-all-reduce.md: registered memory, 16 MiB in place: 2 ranks take 680 us, each for 4 x 8
  // MiB.
  p.cost(Level::kMemory, Protocol::kWindow) = {
      .post_us = 0.1, .latency_us = 0.35, .gap_us = 0, .gbytes_per_s = 25, .channel_gbytes_per_s = 0};
  p.attach_us = 1;  // docs/decisions/0012
  // The same document: an all-gather of 1 MiB takes 27 us, long ones run at the speed of memory.
  p.attach_gbytes_per_s = 10;
  p.reduce_gbytes_per_s = 22;  // docs/results/2026-11-21-all-reduce.md, kernels, 64 MiB
  p.copy_gbytes_per_s = 14;    // the same
  // docs/results/2026-11-21-tcp.md: 2.6 us per sendmsg, 3.8 us one way, 5 to 8 GB/s, over loopback. A real network
  // has a longer latency (10 us: guessed) and is slower than loopback (25 Gbit/s: guessed). The guesses are used.
  p.cost(Level::kNic, Protocol::kSimple) = {
      .post_us = 2.6, .latency_us = 10, .gap_us = 0, .gbytes_per_s = 2.9, .channel_gbytes_per_s = 0};
  p.cost(Level::kSpine, Protocol::kSimple) = p.cost(Level::kNic, Protocol::kSimple);
  p.cost(Level::kSpine, Protocol::kSimple).latency_us += 1;
  p.slot_bytes = 128 * 1024;  // TUTTI_SLOT_BYTES
  p.slots = 4;                // TUTTI_SLOTS
  p.channels = 1;             // a rank is one thread
  return p;
}

Parameters default_gpu_parameters(std::int32_t capability) {
  TUTTI_ASSERT(capability > 0);
  const Generation& generation = capability >= 100 ? kB200 : (capability >= 90 ? kH100 : kA100);
  Parameters p = default_host_parameters(0);
  p.name = capability >= 100 ? "gpu sm_100" : (capability >= 90 ? "gpu sm_90" : "gpu sm_80");
  p.launch_us = generation.launch_us;
  p.step_us = 0.2;  // two barriers of a block, and a read of the flags (guessed)
  p.handover_us = 0;
  // NCCL 2.30 graph/tuning.cc, one step of a ring: NVLink 0.6, 1.9, 3.4 us (LL, LL128, simple), PCIe 1.0, 2.5, 5.7
  // us.
  const double nvlink = generation.nvlink_gbytes_per_s;
  // About twelve blocks saturate the links (NCCL uses 16 to 24 channels).
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
  p.reduce_gbytes_per_s = generation.memory_gbytes_per_s / 3;  // two loads and a store in the GPU's own memory
  p.copy_gbytes_per_s = generation.memory_gbytes_per_s / 2;
  p.switch_gbytes_per_s = generation.switch_gbytes_per_s;
  p.switch_latency_us = generation.switch_gbytes_per_s > 0 ? 25 : 0;  // NCCL's NVLS latency, same file
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
