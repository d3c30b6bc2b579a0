// Describes the hardware by a text made from what the kernel reports (mostly in /proc and /sys), and hashes that text.
// Reads and writes the calibration file, and locks its folder.
#include "model/calibration.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/paths.h"
#include "topology/host.h"

namespace tutti {
namespace {

// limit on the entries of a folder that are looked at
constexpr std::size_t kMostEntries = 4096;
// limit on the bytes of a line that are used
constexpr std::size_t kMostLine = 512;
constexpr std::size_t kMostCpuinfoLines = 64;

Error system_error(const std::string& path, const char* what) {
  const int cause = errno;
  return {ErrorCode::kSystem, ErrorScope::kCall, -1,
          fmt::format("{}: {} ({})", path, what, std::generic_category().message(cause))};
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line.substr(0, kMostLine);
}

// Returns the paths of the entries of a folder, at most kMostEntries. They are sorted, so that the order in which the
// kernel lists them does not change the hash. (If a folder has more entries, the order can change it.)
std::vector<std::string> entries(const std::string& folder) {
  std::vector<std::string> found;
  for (const std::string& name : names_in_folder(folder, kMostEntries)) found.push_back(join_path(folder, name));
  return found;
}

// Describes only the first processor of /proc/cpuinfo, because the processors of a machine are usually all of the
// same model.
std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  std::string text;
  for (std::size_t lines = 0; lines < kMostCpuinfoLines && std::getline(file, line) && !line.empty(); ++lines) {
    for (const char* field : {"vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU part"}) {
      if (line.starts_with(field)) text += line.substr(0, kMostLine) + ";";
    }
  }
  return text;
}

// Lists the display controllers (PCI classes that start with 0x03), which include the GPUs, and the processing
// accelerators (0x12), by vendor and device number. Bus numbers are left out, because they can change when other
// devices are plugged in.
std::string accelerators() {
  std::string text;
  for (const std::string& device : entries("/sys/bus/pci/devices")) {
    const std::string kind = first_line(join_path(device, "class"));
    if (!kind.starts_with("0x03") && !kind.starts_with("0x12")) continue;
    text += fmt::format("gpu {}:{};", first_line(join_path(device, "vendor")), first_line(join_path(device, "device")));
  }
  return text;
}

std::string nics() {
  std::string text;
  for (const std::string& one : entries("/sys/class/net")) {
    if (!file_exists(join_path(one, "device"))) continue;  // no hardware, for example loopback or a bridge
    text += fmt::format("nic {}:{};", first_line(join_path(one, "device/vendor")),
                        first_line(join_path(one, "device/device")));
  }
  for (const std::string& one : entries("/sys/class/infiniband")) {
    for (const std::string& port : entries(join_path(one, "ports")))
      text += fmt::format("rdma {};", first_line(join_path(port, "rate")));
  }
  return text;
}

std::string description() {
  const HostTopology host = discover_host();
  std::size_t numa = 0;
  for (const std::string& node : entries("/sys/devices/system/node")) {
    const std::string name = node.substr(node.rfind('/') + 1);
    numa += name.starts_with("node") && name.find_first_not_of("0123456789", 4) == std::string::npos ? 1 : 0;
  }
  // sysconf() counts all processors of the machine, even those on which this process may not run.
  return fmt::format("{}cores {};l2 {};l3 {};numa {};{}{}", processor(), ::sysconf(_SC_NPROCESSORS_CONF), host.l2_bytes,
                     host.last_level_bytes, numa, accelerators(), nics());
}

// Returns the folder of calibration files. Returns an empty string if neither XDG_CACHE_HOME nor HOME is an
// absolute path.
std::string calibration_folder(const EnvironmentVariables& environment) {
  const auto value = [&](std::string_view name) {
    const auto found = environment.find(name);
    return found == environment.end() ? std::string() : found->second;
  };
  const std::string cache = value("XDG_CACHE_HOME");
  // The XDG specification demands that relative paths are ignored.
  if (cache.starts_with('/')) return cache + "/tutti";
  const std::string home = value("HOME");
  return home.starts_with('/') ? home + "/.cache/tutti" : std::string();
}

Status write_all(int fd, const std::string& path, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return system_error(path, "cannot be written");
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Status check_replaceable(const std::string& path) {
  struct stat status {};
  // Refuses an existing file that is not a regular file. A symbolic link is refused as well, because rename() would
  // replace the link and not the file that it names.
  if (::lstat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return {};
  return Error{ErrorCode::kSystem, ErrorScope::kCall, -1,
               fmt::format("{} is not a regular file and is not replaced; give another path", path)};
}

Status create(const std::string& folder) {
  errno = create_folders(folder);
  return errno == 0 ? Status() : Status(system_error(folder, "cannot be created"));
}

// If the folder does not exist, creates it, accessible to its owner only, and the folder above it if that does not
// exist either. Creates nothing and returns an error if the folder in which they would be created does not exist, or if
// it belongs to another user (for example HOME under sudo), who could not use the new folders.
Status create_own_folder(const std::string& folder) {
  if (file_exists(folder)) return {};
  std::string above = folder_of(folder);
  if (!file_exists(above)) above = folder_of(above);
  struct stat status {};
  if (::stat(above.c_str(), &status) != 0) return system_error(folder, "cannot be created");
  if (status.st_uid != ::geteuid()) {
    return Error{ErrorCode::kSystem, ErrorScope::kCall, -1,
                 fmt::format("{} belongs to another user, so {} is not created in it", above, folder)};
  }
  TUTTI_TRY(create(folder));
  ::chmod(folder.c_str(), 0700);
  return {};
}

}  // namespace

std::string hardware_hash() {
  // The hash FNV-1a with 64 bits. It only has to distinguish machines, so it need not resist attacks.
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : description()) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return fmt::format("{:016x}", hash);
}

std::string calibration_path(const std::string& file, const EnvironmentVariables& environment) {
  if (!file.empty()) return file;
  const std::string folder = calibration_folder(environment);
  return folder.empty() ? folder : fmt::format("{}/{}.json", folder, hardware_hash());
}

Result<std::optional<Parameters>> load_calibration(const std::string& file, const EnvironmentVariables& environment) {
  // A file that the user names in TUTTI_TUNE_FILE is used even if it was measured on other hardware.
  if (!file.empty()) {
    auto parameters = load_parameters(file);
    if (!parameters) return parameters.error();
    return std::optional<Parameters>(*std::move(parameters));
  }
  // Check for the folder first, because hardware_hash() reads dozens of files. Before the first measurement there is
  // usually no folder, and then the hash is not needed.
  const std::string folder = calibration_folder(environment);
  if (folder.empty() || file_type(folder) != FileType::kFolder) return std::optional<Parameters>();
  const std::string hardware = hardware_hash();
  const std::string path = fmt::format("{}/{}.json", folder, hardware);
  if (!file_exists(path)) return std::optional<Parameters>();
  auto parameters = load_parameters(path);
  if (!parameters) return parameters.error();
  if (parameters->hardware == hardware) return std::optional<Parameters>(*std::move(parameters));
  return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
               fmt::format("{}: was measured on other hardware (\"{}\")", path, parameters->hardware)};
}

Status store_calibration(const std::string& path, const Parameters& parameters) {
  TUTTI_TRY(check_replaceable(path));
  const std::string folder = folder_of(path);
  TUTTI_TRY(create(folder));
  std::string temporary = path + ".XXXXXX";  // in the same folder, so that the rename stays within one file system
  const int fd = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) return system_error(temporary, "cannot be made");
  ::fchmod(fd, 0644);
  Status status = write_all(fd, temporary, to_json(parameters));
  // Without fsync(), a crash of the machine after the rename could leave an empty file at `path`.
  if (status.ok() && ::fsync(fd) != 0) status = system_error(temporary, "cannot be written");
  if (::close(fd) != 0 && status.ok()) status = system_error(temporary, "cannot be written");
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0)
    status = system_error(path, "cannot be replaced");
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

Result<CalibrationLock> CalibrationLock::take(const std::string& path) {
  const std::string folder = folder_of(path);
  TUTTI_TRY(check_replaceable(path));
  TUTTI_TRY(create_own_folder(folder));
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return system_error(folder, "cannot be opened");
  CalibrationLock lock(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Error{ErrorCode::kTimeout, ErrorScope::kCall, -1,
                 fmt::format("{} is locked, because a job or `tutti tune` measures this machine", folder)};
  }
  // Writes a file of about the size of a calibration file and removes it again. If the disk is full, this usually fails
  // now, before time is spent on a measurement.
  std::string probe = path + ".XXXXXX";
  const int file = ::mkostemp(probe.data(), O_CLOEXEC);
  if (file < 0) return system_error(probe, "cannot be made");
  const Status written = write_all(file, probe, std::string(4096, ' '));
  ::close(file);
  ::unlink(probe.c_str());
  if (!written.ok()) return written.error();
  return lock;
}

CalibrationLock::~CalibrationLock() {
  if (fd_ < 0) return;
  ::flock(fd_, LOCK_UN);  // close() alone would not end the lock while a child of fork() has the folder open
  ::close(fd_);
}

}  // namespace tutti
