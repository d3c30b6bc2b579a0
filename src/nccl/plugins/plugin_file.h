// Finds and opens the shared library of a plugin of NCCL by NCCL's rules for NCCL_TUNER_PLUGIN and
// NCCL_PROFILER_PLUGIN. An opened library stays open until the process ends, because a plugin may have started threads.
// All functions may be called from any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/shared_library.h"

namespace tutti::nccl {

// A type of plugin.
struct PluginType {
  const char* variable;             // the environment variable that names the plugin
  const char* file;                 // the beginning of the file's name: "libnccl-tuner"
  const char* symbol;               // the beginning of the name of the plugin's table of functions; its version follows
  std::vector<int> versions;        // the versions of the table that Tutti can use, the preferred one first
  std::vector<int> other_versions;  // other versions that are looked for, only to name them in the message
};

// The names of the files to open, in the order in which they are tried; an empty name is the program itself.
//   no value             libnccl-tuner.so
//   "none"               no file (any case)
//   "STATIC_PLUGIN"      the program itself (any case)
//   "x"                  x, then libnccl-tuner-x.so
//   "dir/x", "libx.so"   only this file: the value contains a slash, or begins with "lib" and ends with ".so"
// Names without a slash are looked for as dlopen() does (LD_LIBRARY_PATH, the system's folders).
std::vector<std::string> plugin_files(std::string_view file, const std::optional<std::string>& value);

// An opened plugin.
struct PluginFile {
  std::string name;             // of the file, for messages
  int version = 0;              // of the table of functions
  const void* table = nullptr;  // the table of functions; its layout follows from the type and the version
};

// Opens the plugin that `value`, the value of type.variable, selects, and finds its table of functions. If there is no
// usable plugin, returns nothing, and writes one warning that names the file and the reason. There is no warning if
// `value` is "none", or if it is not set and there is no file with the default name.
std::optional<PluginFile> open_plugin(const PluginType& type, const std::optional<std::string>& value, const Log& log);

}  // namespace tutti::nccl
