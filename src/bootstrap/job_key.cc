#include "bootstrap/job_key.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/system_error.h"

namespace tutti {
namespace {

constexpr const char* kKeyFile = "machine.key";
constexpr mode_t kOthers = S_IRWXG | S_IRWXO;

Error config_error(std::string message) { return {ErrorCode::kConfig, ErrorScope::kCall, -1, std::move(message)}; }
Error system_error(std::string message) { return {ErrorCode::kSystem, ErrorScope::kCall, -1, std::move(message)}; }

// The error for a file or folder of keys and an errno value. It is kSystem if this process lacks a resource such as
// memory. That case is separate because another rank may be able to read the same file, see machine_key().
Error file_error(std::string_view name, int error) {
  return {is_shortage(error) ? ErrorCode::kSystem : ErrorCode::kConfig, ErrorScope::kCall, -1,
          fmt::format("{}: {}", name, describe_errno(error))};
}

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

Key hashed(std::string_view material) { return hmac_key("tutti job key", {material}); }

// Reads a file that belongs to this user or root and whose mode gives no permission to other users. Fails with
// kConfig for other files. Reads at most kMostKeyBytes + 1 bytes, so that the caller can detect a file that is too
// long. `path` is relative to the descriptor `folder`, and `name` is the name for messages.
Result<std::string> read_private(int folder, const char* path, std::string_view name) {
  const Fd file(openat(folder, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (file.get() < 0) return file_error(name, errno);
  struct stat about {};
  if (fstat(file.get(), &about) != 0) return file_error(name, errno);
  if (!S_ISREG(about.st_mode)) return config_error(fmt::format("{} is not a file", name));
  // The owner may be root, because Kubernetes, for example, creates secret files as root.
  const bool trusted = about.st_uid == geteuid() || about.st_uid == 0;
  if (!trusted || (about.st_mode & kOthers) != 0) {
    return config_error(fmt::format("{} may be read or written by other users: chmod 600, chown {}", name, geteuid()));
  }
  std::string bytes(kMostKeyBytes + 1, '\0');
  const ssize_t got = pread(file.get(), bytes.data(), bytes.size(), 0);
  if (got < 0) return file_error(name, errno);
  bytes.resize(static_cast<std::size_t>(got));
  // Some systems delete old files in temporary folders. Set the time of this file to now, so that it is not
  // deleted: all ranks must find the same key.
  if (about.st_uid == geteuid()) static_cast<void>(futimens(file.get(), nullptr));
  return bytes;
}

// Opens a folder that belongs to this user and that other users cannot write to. Creates the folder if it does not
// exist. Returns the descriptor, or an error if the folder does not meet these conditions or cannot be created or
// opened.
Result<int> open_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return file_error(path, errno);
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return file_error(path, errno);
  struct stat about {};
  if (fstat(fd, &about) == 0 && about.st_uid == geteuid() && (about.st_mode & (S_IWGRP | S_IWOTH)) == 0) return fd;
  close(fd);
  return config_error(fmt::format("{} belongs to another user, or others may write to it", path));
}

// Writes a new random key to a temporary file and then links that file to the final name kKeyFile. So a process
// that finds the final name finds a complete key. If two processes do this at the same time, only one link
// succeeds, and both processes afterwards read the key of that one.
Status make_key_file(int folder, const std::string& path) {
  Key key{};
  std::array<std::uint8_t, 8> suffix{};
  if (!random_bytes(key) || !random_bytes(suffix)) return system_error("the system gives no random bytes");
  std::string name = fmt::format(".{}.{}", kKeyFile, getpid());
  for (const std::uint8_t byte : suffix) name += fmt::format("{:02x}", byte);
  const Fd file(openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.get() < 0) return file_error(path + ": a file in it", errno);
  const bool written = write(file.get(), key.data(), key.size()) == static_cast<ssize_t>(key.size());
  const bool linked = written && (linkat(folder, name.c_str(), folder, kKeyFile, 0) == 0 || errno == EEXIST);
  const int reason = errno;
  unlinkat(folder, name.c_str(), 0);
  if (!linked) return file_error(path + ": a key in it", reason);
  return {};
}

Result<JobKey> machine_key_in(const std::string& path) {
  auto opened = open_folder(path);
  if (!opened) return opened.error();
  const Fd folder(*opened);
  const std::string name = fmt::format("{}/{}", path, kKeyFile);
  if (faccessat(folder.get(), kKeyFile, F_OK, AT_SYMLINK_NOFOLLOW) != 0) TUTTI_TRY(make_key_file(folder.get(), path));
  auto bytes = read_private(folder.get(), kKeyFile, name);
  if (!bytes) return bytes.error();
  const WipesText wipes(*bytes);
  if (bytes->size() != Key::kBytes) return config_error(fmt::format("{} is no key of this machine: remove it", name));
  return JobKey{.key = hashed(*bytes), .kind = wire::KeySource::kMachine, .origin = "this machine's, " + name};
}

}  // namespace

std::vector<std::string> machine_key_folders(uid_t user, const EnvironmentVariables& environment) {
  std::vector<std::string> folders;
  const std::string runtime = fmt::format("/run/user/{}", user);
  if (access(runtime.c_str(), W_OK) == 0) folders.push_back(runtime + "/tutti");
  for (const char* const common : {P_tmpdir, "/dev/shm"}) folders.push_back(fmt::format("{}/tutti-{}", common, user));
  for (const char* const name : {"TMPDIR", "XDG_CACHE_HOME"}) {
    const auto found = environment.find(name);
    if (found == environment.end() || !found->second.starts_with('/')) continue;
    const std::string folder = fmt::format("{}/tutti-{}", found->second, user);
    if (std::ranges::find(folders, folder) == folders.end()) folders.push_back(folder);
  }
  return folders;
}

std::string_view how_to_give_a_key() {
  return "give all ranks one key: TUTTI_JOB_KEY_FILE, a file with at least 16 random bytes (head -c 32 /dev/urandom), "
         "mode 600, on every machine";
}

Result<JobKey> key_of_file(const std::string& path, std::string_view variable) {
  const std::string name = fmt::format("the key file {} ({})", path, variable);
  auto bytes = read_private(AT_FDCWD, path.c_str(), name);
  if (!bytes) return bytes.error();
  const WipesText wipes(*bytes);
  if (bytes->size() < kLeastKeyBytes || bytes->size() > kMostKeyBytes) {
    return config_error(fmt::format("{} has {} bytes: a key has {} to {}, random ones (head -c 32 /dev/urandom)", name,
                                    bytes->size() > kMostKeyBytes ? "too many" : std::to_string(bytes->size()),
                                    kLeastKeyBytes, kMostKeyBytes));
  }
  return JobKey{.key = hashed(*bytes), .kind = wire::KeySource::kGiven, .origin = name};
}

Result<JobKey> key_of_text(std::string_view hexadecimal) {
  std::string bytes;
  const WipesText wipes(bytes);
  bytes.reserve(hexadecimal.size() / 2);
  for (std::size_t i = 0; i + 1 < hexadecimal.size(); i += 2) {
    int byte = 0;
    for (const char c : hexadecimal.substr(i, 2)) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return config_error("TUTTI_JOB_KEY has a character that is no hexadecimal digit");
      byte = byte * 16 + digit;
    }
    bytes += static_cast<char>(byte);
  }
  if (hexadecimal.size() % 2 != 0 || bytes.size() < kLeastKeyBytes || bytes.size() > kMostKeyBytes) {
    return config_error(fmt::format("TUTTI_JOB_KEY has {} hexadecimal digits: give an even number from {} to {}",
                                    hexadecimal.size(), 2 * kLeastKeyBytes, 2 * kMostKeyBytes));
  }
  return JobKey{.key = hashed(bytes), .kind = wire::KeySource::kGiven, .origin = "TUTTI_JOB_KEY"};
}

Result<JobKey> machine_key(std::span<const std::string> folders) {
  std::string troubles;
  for (const std::string& folder : folders) {
    auto key = machine_key_in(folder);
    if (key) return key;
    // Other ranks may be able to read the key in this folder. A key from another folder would not match theirs, so
    // stop here.
    if (key.error().code == ErrorCode::kSystem) {
      return system_error("this machine's key cannot be read: " + key.error().message);
    }
    troubles += (troubles.empty() ? "" : "; ") + key.error().message;
  }
  return system_error(
      fmt::format("no key is given, and this machine's cannot be made ({}): {}", troubles, how_to_give_a_key()));
}

Result<std::optional<JobKey>> key_of_options(std::string_view job_key, const std::string& job_key_file,
                                             std::string_view structure) {
  if (job_key.empty()) return configured_key(job_key_file, fmt::format("{}::job_key_file", structure), "");
  const auto invalid = [](std::string message) {
    return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)};
  };
  if (!job_key_file.empty()) return invalid(fmt::format("{} has both job_key and job_key_file: give one", structure));
  if (job_key.size() < kLeastKeyBytes || job_key.size() > kMostKeyBytes) {
    return invalid(fmt::format("{}::job_key has {} bytes: give {} to {}", structure, job_key.size(), kLeastKeyBytes,
                               kMostKeyBytes));
  }
  return std::optional(
      JobKey{.key = hashed(job_key), .kind = wire::KeySource::kGiven, .origin = fmt::format("{}::job_key", structure)});
}

Result<std::optional<JobKey>> configured_key(const std::string& file, std::string_view variable,
                                             const std::string& hexadecimal) {
  if (file.empty() && hexadecimal.empty()) return std::optional<JobKey>();
  auto key = file.empty() ? key_of_text(hexadecimal) : key_of_file(file, variable);
  if (!key) return key.error();
  return std::optional(*std::move(key));
}

Result<JobKey> find_job_key(const std::string& file, std::string_view variable, const std::string& hexadecimal) {
  auto configured = configured_key(file, variable, hexadecimal);
  if (!configured) return configured.error();
  return *configured ? Result<JobKey>(**configured)
                     : machine_key(machine_key_folders(geteuid(), process_environment()));
}

JobKey key_of_secret(std::string_view secret) {
  return {.key = hmac_key("tutti unique id", {secret}), .kind = wire::KeySource::kUniqueId, .origin = "the unique id"};
}

JobKey key_of_id(const JobKey& of_id, const std::optional<JobKey>& configured) {
  if (!configured) return of_id;
  return {.key = hmac_key(bytes_of(configured->key), {"tutti unique id and key", bytes_of(of_id.key)}),
          .kind = wire::KeySource::kUniqueIdAndKey,
          .origin = fmt::format("the unique id and {}", configured->origin)};
}

std::string job_id_of_secret(std::string_view secret) {
  std::string id;
  for (const std::uint8_t byte : tag_of(hmac_sha256("tutti job id", {secret}))) id += fmt::format("{:02x}", byte);
  return id;
}

std::string other_key_message(wire::KeySource here, wire::KeySource there, std::string_view who) {
  using wire::KeySource;
  if (here == KeySource::kMachine && there == KeySource::kMachine) {
    return fmt::format("{} has another machine's key (or another user's, or another container's) and no job key: {}",
                       who, how_to_give_a_key());
  }
  const auto lacks_key = [](KeySource kind) { return kind == KeySource::kMachine || kind == KeySource::kUniqueId; };
  if (here != there && lacks_key(there)) {
    return fmt::format("{} has no job key, and here is one: {}", who, how_to_give_a_key());
  }
  if (here != there && lacks_key(here))
    return fmt::format("{} has a job key, and here is none: {}", who, how_to_give_a_key());
  return fmt::format("{} has another job key: give all ranks the same", who);
}

}  // namespace tutti
