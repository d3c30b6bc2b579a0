// The calibration file: stores the measured costs and choices of a machine (Parameters), with a hash that identifies
// the machine's hardware. `tutti tune` writes it. A job whose choices are missing may measure them, and adds them to
// the file. Rank 0 of a job reads it during set-up. May be used from any thread or process: a writer writes a temporary
// file and renames it, so a reader sees either the complete old file or the complete new one. If several write at once,
// the last rename counts.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/config.h"
#include "model/parameters.h"
#include "tutti/result.h"

namespace tutti {

// Returns 16 hexadecimal digits: a hash of the hardware that determines a machine's costs, as the kernel reports it:
// processor model, number of processors, cache sizes, number of NUMA nodes, models of GPUs, accelerators and NICs, and
// speed of the RDMA ports. Never fails: a part that cannot be read counts as absent.
std::string hardware_hash();

// Returns the path of this machine's file: `file` (the value of TUTTI_TUNE_FILE) if it is not empty; otherwise
// $XDG_CACHE_HOME/tutti/HASH.json; if that variable is not set, $HOME/.cache/tutti/HASH.json. HASH is
// hardware_hash(). A variable that is not an absolute path counts as not set. Returns an empty string if `file` is
// empty and neither variable is set.
std::string calibration_path(const std::string& file, const EnvironmentVariables& environment);

// Returns the parameters that are stored at calibration_path(). If `file` is empty, returns nothing if this machine has
// no file, and only accepts a file that was measured on this hardware. If `file` is not empty, that file must
// exist, and may have been measured on another machine. Errors: kSystem if the file cannot be read;
// kInvalidArgument if its content is wrong, or if it was measured on other hardware and `file` is empty.
Result<std::optional<Parameters>> load_calibration(const std::string& file, const EnvironmentVariables& environment);

// Replaces or creates the file by a rename, and creates its folder if needed. Errors: kSystem, with the path in the
// message, if the file cannot be written, or if `path` exists and is not a regular file, for example a symbolic link.
Status store_calibration(const std::string& path, const Parameters& parameters);

// The lock of the folder of a calibration file. Jobs on this machine hold it while they measure and store. So does
// `tutti tune`, except with --print or TUTTI_TUNE_FILE, or if it cannot get the lock. Other machines that share the
// folder, for example by NFS, may not see the lock; the last one that stores wins. The lock ends with the object, or at
// the latest when the process and its children of fork() end. It leaves no file.
class CalibrationLock {
 public:
  // Creates the folder of `path` and the one above it if needed, and locks the folder of `path`. Does not wait. Errors:
  // kTimeout if another object has locked that folder, in this or another process; kSystem if no file can be stored at
  // `path`. If the file system cannot lock folders, succeeds without a lock.
  static Result<CalibrationLock> take(const std::string& path);
  ~CalibrationLock();
  CalibrationLock(CalibrationLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  CalibrationLock& operator=(CalibrationLock&& other) = delete;

 private:
  explicit CalibrationLock(int fd) : fd_(fd) {}
  int fd_;  // of the folder
};

}  // namespace tutti
