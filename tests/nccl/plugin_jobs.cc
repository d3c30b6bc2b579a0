#include "nccl/plugin_jobs.h"

namespace tutti::nccl_test {

// TUTTI_PLUGIN_DIR is the build folder of the plugins.
std::string tuner(int version) { return TUTTI_PLUGIN_DIR "/libnccl-tuner-v" + std::to_string(version) + ".so"; }

std::string profiler(int version) { return TUTTI_PLUGIN_DIR "/libnccl-profiler-v" + std::to_string(version) + ".so"; }

}  // namespace tutti::nccl_test
