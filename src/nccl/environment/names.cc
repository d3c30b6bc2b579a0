#include "nccl/environment/names.h"

#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/config.h"

namespace tutti::nccl {
namespace {

constexpr std::string_view kPrefix = "NCCL_";

constexpr auto kMapped = std::to_array<std::string_view>({
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_COMM_BLOCKING",
    "NCCL_COMM_ID",
    "NCCL_CONF_FILE",
    "NCCL_DEBUG",
    "NCCL_HOSTID",
    "NCCL_IB_DISABLE",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_HCA",
    "NCCL_IB_QPS_PER_CONNECTION",
    "NCCL_IB_RETRY_CNT",
    "NCCL_IB_SL",
    "NCCL_IB_TC",
    "NCCL_IB_TIMEOUT",
    "NCCL_MAX_CTAS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MAX_NRINGS",
    "NCCL_MIN_CTAS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MIN_NRINGS",
    "NCCL_NET",
    "NCCL_NTHREADS",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_PARAM_DUMP_ALL",
    "NCCL_PROFILER_PLUGIN",
    "NCCL_PROTO",
    "NCCL_RUN_DIAGNOSTICS",
    "NCCL_SHM_DISABLE",
    "NCCL_SOCKET_FAMILY",
    "NCCL_SOCKET_IFNAME",
    "NCCL_TUNER_PLUGIN",
});

constexpr auto kForeign = std::to_array<std::string_view>({
    // Read by PyTorch. These are old names; the present ones begin with TORCH_NCCL_.
    "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING",
    "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
    // Read by NVIDIA's example of a tuner plugin.
    "NCCL_TUNER_CONFIG_FILE",
    // Read by build systems (the folder in which NCCL is installed) and by container images (the version of NCCL).
    "NCCL_DIR",
    "NCCL_HOME",
    "NCCL_INCLUDE",
    "NCCL_INCLUDE_DIR",
    "NCCL_INCLUDE_DIRS",
    "NCCL_LIB",
    "NCCL_LIBRARIES",
    "NCCL_LIBRARY",
    "NCCL_LIB_DIR",
    "NCCL_PATH",
    "NCCL_PREFIX",
    "NCCL_ROOT",
    "NCCL_ROOT_DIR",
    "NCCL_VERSION",
});

// The reason why the variables with names that begin with `start` have no effect. If several entries of kFamilies
// match a name, the first one applies.
struct Family {
  std::string_view start;  // the name without NCCL_
  std::string_view reason;
};

constexpr std::string_view kNoNetPlugins =
    "Tutti loads no net plugins: its transports also register memory, report which ranks have failed, and have the "
    "buffers and the message order that the proofs of plans assume, and the interface of net plugins offers only part "
    "of this; TUTTI_TRANSPORT selects a transport";

constexpr auto kFamilies = std::to_array<Family>({
    {"IB_", "Tutti's verbs transport chooses this setting by itself; docs/rdma.md lists the settings that exist"},
    {"IBVERBS_", "libibverbs.so.1 is always loaded from the system's library path"},
    {"GDR", "Tutti sends GPU memory to network cards through host memory"},
    {"NET_GDR_", "Tutti sends GPU memory to network cards through host memory"},
    {"DMABUF_", "Tutti sends GPU memory to network cards through host memory"},
    {"PXN_", "Tutti sends GPU memory to network cards through host memory"},
    {"GIN_", "Tutti does not support network operations that GPUs start themselves yet"},
    {"GDAKI_", "Tutti does not support network operations that GPUs start themselves yet"},
    {"RMA_", "Tutti does not support network operations that GPUs start themselves yet"},
    {"NET_PLUGIN", kNoNetPlugins},
    {"ENV_PLUGIN",
     "Tutti loads no environment plugins: all settings come from the environment and from configuration files"},
    {"NET", "it configures NCCL's networks: Tutti has its own, which TUTTI_TRANSPORT selects"},
    {"SOCKET_", "Tutti's TCP transport chooses its sockets and threads by itself"},
    {"NSOCKS_", "Tutti's TCP transport chooses its sockets and threads by itself"},
    {"OOB_NET_", "communicators are set up over the interface of NCCL_SOCKET_IFNAME, or TUTTI_INTERFACE"},
    {"UID_STAGGER_", "all ranks of a communicator can connect at the same time, so no staggering is needed"},
    {"COLLNET_", "Tutti uses no reductions inside the network"},
    {"NVLS", "Tutti uses no reductions inside NVSwitch"},
    {"MNNVL_", "GPUs of several machines are not joined over NVLink yet"},
    {"SYM_", "Tutti has no kernels for symmetric memory"},
    {"WIN_", "windows need no setting"},
    {"RAS_", "Tutti does not have NCCL's RAS service"},
    {"TOPO_", "Tutti's NCCL interface does not read or write topology files yet"},
    {"GRAPH_DUMP", "Tutti writes its plans with `tutti plan`"},
    {"GRAPH_FILE", "Tutti's NCCL interface does not read rings and trees from a file: it plans them by itself"},
    {"GRAPH_", "captured graphs need no setting"},
    {"CUMEM_", "Tutti chooses how memory is shared by itself"},
    {"DEBUG_FILE", "log lines go to standard error"},
    {"DEBUG_", "log lines have one form and are chosen by level, NCCL_DEBUG"},
    {"CHECK", "Tutti checks arguments and the agreement of the ranks in every call"},
    {"P2P_", "Tutti chooses by itself how GPUs exchange data"},
    {"LL", "Tutti sizes its protocols by itself; NCCL_PROTO and NCCL_BUFFSIZE have an effect"},
    {"PROXY_", "Tutti has no proxy threads to set"},
    {"LAUNCH_", "Tutti launches the kernels of ranks that share a process together if this is necessary"},
});

// A variable of NCCL that Tutti knows and ignores. `done` lists the values that request nothing that Tutti does not
// always do (it may do more), so that the user need not be told that the variable is ignored. Empty: there is no such
// value.
struct KnownVariable {
  std::string_view name;  // the name without NCCL_
  std::string_view done;  // values, separated by commas, compared without regard to case
};

constexpr auto kKnown = std::to_array<KnownVariable>({
    {"ALLOC_P2P_NET_LL_BUFFERS", "0"},
    {"CGA_CLUSTER_SIZE", "0"},
    {"CHECKS_DISABLE", "0"},
    {"CHECK_MODE", "DEFAULT,DEBUG_LOCAL,DEBUG_GLOBAL"},
    {"CHECK_POINTERS", "0,1"},
    {"CHUNK_SIZE", ""},
    {"COLLNET_ENABLE", "0"},
    {"COLLNET_NODE_THRESHOLD", ""},
    {"COMM_SHRINK_SHARE_RESOURCES", "0"},
    {"COMM_SPLIT_SHARE_RESOURCES", "0"},
    {"CROSS_NIC", ""},
    {"CTA_POLICY", "0,DEFAULT"},
    {"CUMEM_ENABLE", "0"},
    {"CUMEM_HOST_ENABLE", "0"},
    {"DEBUG_FILE", "/dev/stderr"},
    {"DEBUG_SUBSYS", ""},
    {"DEBUG_TIMESTAMP_FORMAT", ""},
    {"DEBUG_TIMESTAMP_LEVELS", ""},
    {"DMABUF_ENABLE", "0"},
    {"ENABLE_VERSION_CHECK", ""},
    {"ENV_PLUGIN", "none"},
    {"GDRCOPY_ENABLE", "0"},
    {"GIN_ENABLE", "0"},
    {"GIN_TYPE", ""},
    {"GRAPH_DUMP_FILE", ""},
    {"GRAPH_FILE", ""},
    {"GRAPH_MIXING_SUPPORT", "1"},
    {"GRAPH_REGISTER", "0"},
    {"GRAPH_STREAM_ORDERING", ""},
    {"IBVERBS_LIB", ""},
    {"IB_ADAPTIVE_ROUTING", ""},
    {"IB_ADDR_FAMILY", ""},
    {"IB_ADDR_RANGE", ""},
    {"IB_AR_THRESHOLD", ""},
    {"IB_CUDA_SUPPORT", "0"},
    {"IB_DATA_DIRECT", ""},
    {"IB_ECE_ENABLE", ""},
    {"IB_FIFO_TC", ""},
    {"IB_MERGE_NICS", ""},
    {"IB_MERGE_VFS", ""},
    {"IB_OOO_RQ", ""},
    {"IB_PCI_RELAXED_ORDERING", ""},
    {"IB_PKEY", ""},
    {"IB_RETURN_ASYNC_EVENTS", ""},
    {"IB_ROCE_VERSION_NUM", ""},
    {"IB_ROUTABLE_FLID_GID_INDEX", ""},
    {"IB_SPLIT_DATA_ON_QPS", ""},
    {"IB_USE_INLINE", ""},
    {"IGNORE_COLLNET_MISMATCH", ""},
    {"IGNORE_CPU_AFFINITY", "1"},
    {"IGNORE_DISABLED_P2P", ""},
    {"IGNORE_NET_MISMATCH", ""},
    {"IPC_USE_ABSTRACT_SOCKET", ""},
    {"LAUNCH_MODE", "PARALLEL"},
    {"LAUNCH_ORDER_IMPLICIT", ""},
    {"LAUNCH_RACE_FATAL", ""},
    {"LEGACY_CUDA_REGISTER", "0"},
    {"LL128_BUFFSIZE", ""},
    {"LL128_NTHREADS", ""},
    {"LL_BUFFSIZE", ""},
    {"LL_THRESHOLD", ""},
    {"LOCAL_REGISTER", "0"},
    {"MAX_P2P_NCHANNELS", ""},
    {"MEM_SYNC_DOMAIN", ""},
    {"MIN_P2P_NCHANNELS", ""},
    {"MNNVL_CLIQUE_ID", ""},
    {"MNNVL_ENABLE", "0"},
    {"MNNVL_UUID", ""},
    {"MULTI_RANK_GPU_ENABLE", "1"},
    {"NCHANNELS_PER_NET_PEER", ""},
    {"NETDEVS_POLICY", ""},
    {"NET_DISABLE_INTRA", "1"},
    {"NET_GDR_C2C", "0"},
    {"NET_GDR_LEVEL", "0,LOC"},
    {"NET_GDR_READ", "0"},
    {"NET_MERGE_POLICY", ""},
    {"NET_PLUGIN", "none"},
    {"NET_SHARED_BUFFERS", "0"},
    {"NET_SHARED_COMMS", "0"},
    {"NSOCKS_PERTHREAD", ""},
    {"NVB_DISABLE", "1"},
    {"NVLS_CHUNKSIZE", ""},
    {"NVLS_ENABLE", "0"},
    {"NVTX_DISABLE", "1"},
    {"OOB_NET_ENABLE", "0"},
    {"OOB_NET_IFNAME", ""},
    {"P2P_DIRECT_DISABLE", ""},
    {"P2P_LL_THRESHOLD", ""},
    {"P2P_NET_CHUNKSIZE", ""},
    {"P2P_NVL_CHUNKSIZE", ""},
    {"P2P_PCI_CHUNKSIZE", ""},
    {"P2P_PXN_LEVEL", "0"},
    {"P2P_READ_ENABLE", ""},
    {"P2P_USE_CUDA_MEMCPY", "0"},
    {"PAT_ENABLE", ""},
    {"PROXY_CPUSET", ""},
    {"PXN_C2C", "0"},
    {"PXN_DISABLE", "1"},
    {"RAS_ADDR", ""},
    {"RAS_ENABLE", "0"},
    {"RAS_TIMEOUT_FACTOR", ""},
    {"RUNTIME_CONNECT", "1"},
    {"SET_STACK_SIZE", "0"},
    {"SET_THREAD_NAME", ""},
    {"SINGLE_RING_THRESHOLD", ""},
    {"SOCKET_MAGIC", ""},
    {"SOCKET_NTHREADS", ""},
    {"SOCKET_POLL_TIMEOUT_MSEC", ""},
    {"SOCKET_RCVBUF", ""},
    {"SOCKET_RETRY_CNT", ""},
    {"SOCKET_RETRY_SLEEP_MSEC", ""},
    {"SOCKET_SNDBUF", ""},
    {"SYM_CTAS", ""},
    {"SYM_GIN_KERNELS_ENABLE", "0"},
    {"THREAD_THRESHOLDS", ""},
    {"TOPO_DUMP_FILE", ""},
    {"TOPO_DUMP_FILE_RANK", ""},
    {"TOPO_FILE", ""},
    {"TREE_THRESHOLD", ""},
    {"UID_STAGGER_RATE", ""},
    {"UID_STAGGER_THRESHOLD", ""},
    {"WIN_ENABLE", ""},
    {"WORK_FIFO_BYTES", ""},
});

// The other variables of NCCL 2.32, without the prefix NCCL_. They are listed so that they are not reported as
// misspelt.
constexpr auto kRare = std::to_array<std::string_view>({"ALLGATHERV_ENABLE",
                                                        "CE_CHUNK_SIZE",
                                                        "CE_COLL_AG_MULTICAST_THRESHOLD",
                                                        "CE_INTRA_GPU_MEMCPY_ENABLE",
                                                        "CONNECT_ROUND_MAX_PEERS",
                                                        "DEV_API_JIT",
                                                        "DIAGNOSTICS_ECC_THRESHOLD",
                                                        "DIAGNOSTICS_IB_BW_TIMEOUT",
                                                        "DISABLE_MEM_MANAGER",
                                                        "ELASTIC_BUFFER_REGISTER",
                                                        "ENQUEUE_REARCH_ENABLE",
                                                        "GDAKI_FORCE_MCST",
                                                        "GDAKI_USE_RELIABLE_DB",
                                                        "GDRCOPY_FIFO_ENABLE",
                                                        "GDRCOPY_FLUSH_ENABLE",
                                                        "GDRCOPY_SYNC_ENABLE",
                                                        "GDRCOPY_USE_INTERNAL_DMABUF",
                                                        "GDR_FLUSH_DISABLE",
                                                        "GIN_CONNECTION_RAIL",
                                                        "GIN_ERROR_QUERY_SEC",
                                                        "GIN_GDAKI_LAG_AWARE_DISABLE",
                                                        "GIN_GDAKI_MAX_DEST_RD_ATOMIC",
                                                        "GIN_GDAKI_MAX_QP_RD_ATOMIC",
                                                        "GIN_GDAKI_NIC_HANDLER",
                                                        "GIN_GDAKI_QP_DEPTH",
                                                        "GIN_IB_OOO_OPT",
                                                        "GIN_IB_TC",
                                                        "GIN_NCONNECTIONS",
                                                        "GIN_PLUGIN",
                                                        "GIN_PLUGIN_REF_COUNT",
                                                        "GIN_PROXY_NTHREADS",
                                                        "GIN_PROXY_POLL_BATCH",
                                                        "GIN_PROXY_QUEUE_SIZE",
                                                        "GRAPH_DUMP_FILE_RANK",
                                                        "GRAPH_HELPER_DISABLE",
                                                        "GROUP_CUDA_STREAM",
                                                        "HIER_CE_COLL_AG_RAIL_RING_ENABLE",
                                                        "HIER_CE_COLL_NUM_CTX",
                                                        "IB_DEVICE_PCI_ORDER",
                                                        "IB_EVENT_BASED_LB",
                                                        "IB_EVENT_BASED_LB_REMOTE",
                                                        "IB_MQP_RETRY_ALL",
                                                        "IB_MQP_RETRY_CNT",
                                                        "IB_MQP_RETRY_SLEEP_MSEC",
                                                        "IB_PREPOST_RECEIVE_WORK_REQUESTS",
                                                        "IB_QUERY_PORT_SPEED",
                                                        "IB_RAIL_POLICY",
                                                        "IB_RECEIVER_SIDE_MATCHING_SCHEME",
                                                        "IB_RESILIENCY_PORT_FAILOVER",
                                                        "IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS",
                                                        "IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY",
                                                        "IB_RESILIENCY_PORT_RECOVERY",
                                                        "IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT",
                                                        "IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL",
                                                        "IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE",
                                                        "IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE",
                                                        "IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT",
                                                        "IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX",
                                                        "IB_RESILIENCY_PORT_RECOVERY_START_DELAY",
                                                        "IB_SORT_MERGE_NICS",
                                                        "IB_SUBNET_AWARE_ROUTING",
                                                        "IB_SUBNET_PREFIX_LEN",
                                                        "IB_VR_RAILS_PER_SOCKET",
                                                        "IB_VR_SOCKET_COUNT",
                                                        "IB_WARN_RAIL_LOCAL",
                                                        "IB_WQE_LATENCY_REPORT",
                                                        "IB_WQE_LATENCY_THRESHOLD_NS",
                                                        "L1_SHARED_MEMORY_CARVEOUT",
                                                        "LL128_C2C",
                                                        "LSA_TEAM_SIZE",
                                                        "MLOPART_RDMA_ENABLE",
                                                        "MNNVL_CROSS_CLIQUE",
                                                        "MNNVL_RAIL_PER_HOST",
                                                        "MNNVL_SCATTER_NETS_ENABLE",
                                                        "MULTI_SEGMENT_REGISTER",
                                                        "NET_FORCE_FLUSH",
                                                        "NET_FORCE_MERGE",
                                                        "NET_GDR_MLOPART",
                                                        "NET_MERGE_LEVEL",
                                                        "NET_OPTIONAL_RECV_COMPLETION",
                                                        "NET_OVERHEAD",
                                                        "NET_PLUGIN_REF_COUNT",
                                                        "NO_CACHE",
                                                        "NUM_RMA_CTX",
                                                        "NUM_RMA_INT_CTX",
                                                        "NVB_PRECONNECT",
                                                        "NVLINK_UTIL_CENTRIC_SCHED_ENABLE",
                                                        "NVLSTREE_MAX_CHUNKSIZE",
                                                        "NVLS_NCHANNELS",
                                                        "NVLS_UB_SIZE",
                                                        "P2P_EPOCH_ENABLE",
                                                        "P2P_MAX_PEERS",
                                                        "P2P_PER_CHANNEL_NET_BW",
                                                        "P2P_PER_CHANNEL_REG_NET_BW",
                                                        "P2P_SCHEDULE_GROUP_SIZE",
                                                        "PROGRESS_APPENDOP_FREQ",
                                                        "PROGRESS_COUNTERS",
                                                        "PROGRESS_COUNTER_MONITOR_POLL_MS",
                                                        "PROGRESS_COUNTER_MONITOR_STALE_MS",
                                                        "PROGRESS_COUNTER_MONITOR_STALE_WARN_SEC",
                                                        "PROXY_APPEND_BATCH_SIZE",
                                                        "PROXY_DUMP_SIGNAL",
                                                        "REPORT_CONNECT_PROGRESS",
                                                        "RMA_DISABLE",
                                                        "RMA_EAGER_INIT",
                                                        "RMA_IB_WR_BATCHSIZE",
                                                        "RMA_MULTI_CTX_THRESHOLD",
                                                        "RMA_PLUGIN",
                                                        "RMA_PLUGIN_REF_COUNT",
                                                        "RMA_PROXY_DUMP_SIGNAL",
                                                        "RMA_PROXY_QUEUE_SIZE",
                                                        "RUN_RAS_DIAGNOSTICS",
                                                        "SET_CPU_STACK_SIZE",
                                                        "SHADOW_MEMPOOL_MAX_SIZE",
                                                        "SHM_LOCALITY",
                                                        "SINGLE_PROC_MEM_REG_ENABLE",
                                                        "SOCKET_INLINE",
                                                        "SOCKET_MIN_TASKSIZE",
                                                        "SYM_CE_THRESHOLD",
                                                        "SYM_KERNEL",
                                                        "SYM_NOWIN_ENABLE",
                                                        "SYM_REUSE_SYSMEM_HANDLES",
                                                        "SYM_RS_GIN_CHUNK_SIZE",
                                                        "SYM_TMA_ENABLE",
                                                        "TOPO_SPLIT_MLOPART",
                                                        "UNPACK_DOUBLE_NCHANNELS",
                                                        "WIN_STRIDE",
                                                        "WORK_ARGS_BYTES"});

bool is_one_of(std::string_view value, std::string_view list) {
  while (!list.empty()) {
    const std::string_view one = list.substr(0, list.find(','));
    if (one.size() == value.size() && strncasecmp(one.data(), value.data(), one.size()) == 0) return true;
    list.remove_prefix(std::min(list.size(), one.size() + 1));
  }
  return false;
}

// The name in kMapped or kKnown that is most similar to `end`, or an empty string if none is similar. All names are
// without the prefix NCCL_, because with the prefix any two names would look similar.
std::string_view nearest(std::string_view end) {
  std::vector<std::string_view> names;
  for (const std::string_view mapped : kMapped) names.push_back(mapped.substr(kPrefix.size()));
  for (const KnownVariable& known : kKnown) names.push_back(known.name);
  return nearest_name(end, names);
}

}  // namespace

std::span<const std::string_view> mapped_names() { return kMapped; }

std::string device_list(std::string_view hca) {
  std::string list;
  if (hca.starts_with('^')) {  // all devices except those in the list; TUTTI_RDMA_DEVICES uses the same sign
    list = "^";
    hca.remove_prefix(1);
  }
  const bool whole = hca.starts_with('=');
  if (whole) hca.remove_prefix(1);
  while (!hca.empty()) {
    const std::string_view word = hca.substr(0, hca.find(','));
    hca.remove_prefix(std::min(hca.size(), word.size() + 1));
    const std::size_t colon = std::min(word.find(':'), word.size());
    if (colon == 0) continue;
    if (!list.empty() && list != "^") list += ',';
    list += fmt::format("{}{}{}", word.substr(0, colon), whole ? "" : "*", word.substr(colon));
  }
  return list;
}

bool is_foreign(std::string_view name) {
  // The last two: variables of NVIDIA's profiler plugins.
  constexpr auto kPrefixes = std::to_array<std::string_view>({"NCCL_TESTS_", "NCCL_PROFILE_", "NCCL_INSPECTOR_"});
  const bool by_prefix = std::ranges::any_of(kPrefixes, [&](std::string_view one) { return name.starts_with(one); });
  return by_prefix || std::find(kForeign.begin(), kForeign.end(), name) != kForeign.end();
}

std::string why_ignored(std::string_view name, std::string_view value) {
  const std::string_view end = name.substr(std::min(name.size(), kPrefix.size()));
  const auto known =
      std::find_if(kKnown.begin(), kKnown.end(), [&](const KnownVariable& one) { return one.name == end; });
  const bool is_known = known != kKnown.end() || std::find(kRare.begin(), kRare.end(), end) != kRare.end();
  if (!is_known) {
    if (const std::string_view near = nearest(end); !near.empty()) {
      return fmt::format("Tutti knows no such variable: did you mean {}{}?", kPrefix, near);
    }
  } else if (known != kKnown.end() && is_one_of(value, known->done)) {
    return {};
  }
  const auto family =
      std::find_if(kFamilies.begin(), kFamilies.end(), [&](const Family& one) { return end.starts_with(one.start); });
  if (family != kFamilies.end()) return std::string(family->reason);
  return is_known ? "Tutti has nothing that it could set" : "Tutti knows no such variable";
}

}  // namespace tutti::nccl
