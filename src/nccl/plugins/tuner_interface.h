// The binary interface of NCCL's tuner plugins, versions 4, 5 and 6, in declarations of our own. The layouts, numbers
// and symbols are facts of NCCL 2.30 (plugins/tuner and src/include/plugin/tuner in its sources). The plugin exports a
// constant ncclTunerPlugin_v4 (_v5, _v6) of the type TunerTableV4 (V5, V6).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "nccl.h"
#include "nccl/environment/counterparts.h"
#include "nccl/plugins/plugin_log.h"

namespace tutti::nccl {

// The predicted time of a call in microseconds by NCCL's numbers of the algorithm and of the protocol. kNotAvailable:
// this combination does not exist.
using CostTable = std::array<std::array<float, kProtocolWords.size()>, kAlgorithmWords.size()>;
inline constexpr float kNotAvailable = -1.0F;
static_assert(sizeof(CostTable) == 7 * 3 * sizeof(float));

// Groups of GPUs that NVLink connects.
struct NvlDomains {
  std::int32_t count = 0;
  std::int32_t least_ranks = 0;  // of one group
  std::int32_t most_ranks = 0;
};
static_assert(sizeof(NvlDomains) == 12);

// The constants of NCCL's cost model. Tutti's model has other parameters.
struct TunerConstants {
  using ByGpu = std::array<std::array<double, 3>, 4>;  // by generation of GPUs and number of machines
  std::array<std::array<double, 3>, 7> base_latencies{};
  std::array<std::array<std::array<double, 3>, 7>, 3> link_latencies{};
  ByGpu ll_bandwidths{}, ring_ll128_bandwidths{}, tree_ll128_bandwidths{}, tree_bandwidths{}, nvls_tree_bandwidths{};

  bool operator==(const TunerConstants&) const = default;
};
static_assert(sizeof(TunerConstants) == (21 + 63 + 5 * 12) * sizeof(double));

// Changes the costs of one collective. `function`: NCCL's number of the collective, which is also its index in
// kFunctionNames; `costs`: a CostTable, although the declared type is another one.
using GetCollInfo = ncclResult_t (*)(void* context, int function, std::size_t bytes, int operations, float** costs,
                                     int algorithms, int protocols, int registered, int* channels);
using TunerEnd = ncclResult_t (*)(void* context);
using TunerStart = ncclResult_t (*)(void** context, std::uint64_t comm_id, std::size_t ranks, std::size_t nodes,
                                    PluginLogger log, NvlDomains* domains, TunerConstants* constants);

struct TunerTableV4 {
  const char* name;
  ncclResult_t (*init)(std::size_t ranks, std::size_t nodes, PluginLogger log, void** context);
  GetCollInfo get_coll_info;
  TunerEnd destroy;
};
static_assert(sizeof(TunerTableV4) == 4 * sizeof(void*));

struct TunerTableV5 {
  const char* name;
  TunerStart init;
  GetCollInfo get_coll_info;
  TunerEnd finalize;
};
static_assert(sizeof(TunerTableV5) == 4 * sizeof(void*));

struct TunerTableV6 {
  const char* name;
  TunerStart init;
  GetCollInfo get_coll_info;
  TunerEnd finalize;
  // Not called: Tutti determines the length of its messages for a connection, not for a call.
  ncclResult_t (*get_chunk_size)(void* context, int function, std::size_t bytes, int algorithm, int protocol,
                                 int channels, std::size_t* chunk_bytes);
};
static_assert(sizeof(TunerTableV6) == 5 * sizeof(void*));

}  // namespace tutti::nccl
