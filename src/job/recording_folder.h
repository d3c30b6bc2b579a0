// RecordingFolder: a folder to which ranks of this process write their recordings. Other users, except root, cannot
// write to it, and the files have mode 0600. When the folder is opened, files of ended communicators, and of processes
// that are known to have exited, are removed if they are older than kOldS (recording_folder.cc); if then more than
// kMostOld of them are left, the oldest are removed as well. A file that has no header after kUnfinishedS counts as one
// of a process that was killed while it made the file. Other files are kept. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "tutti/result.h"

namespace tutti {

// A new file that is mapped into memory. The destructor unmaps it, but the file remains.
class MappedRecording {
 public:
  MappedRecording() = default;
  ~MappedRecording();
  MappedRecording(const MappedRecording&) = delete;
  MappedRecording& operator=(const MappedRecording&) = delete;
  std::byte* data() const { return data_; }

 private:
  friend class RecordingFolder;
  std::byte* data_ = nullptr;  // null until the file is mapped
  std::size_t bytes_ = 0;
};

class RecordingFolder {
 public:
  // `candidates` are folders in the order of preference. A missing folder is created, but not its parent. No folder is
  // opened before the first make().
  RecordingFolder(std::vector<std::string> candidates, Log log);
  ~RecordingFolder();
  RecordingFolder(const RecordingFolder&) = delete;
  RecordingFolder& operator=(const RecordingFolder&) = delete;

  // Creates a file of zeros and allocates all its memory, so that no later access can fail for lack of space.
  // Returns null if no candidate is usable. The first time this happens, a warning states the reason.
  std::unique_ptr<MappedRecording> make(const std::string& name, std::size_t bytes);
  // Removes a file that make() has created.
  void discard(const std::string& name) noexcept;
  // Reports that the communicator of this recording ended without an error. Renames the file
  // (recording::kEndedSuffix). Of the files that this object has renamed in the folder, only the last kMostEnded
  // (recording_folder.cc) are kept.
  void mark_completed(const std::string& name);

 private:
  bool open();
  Status open_one(const std::string& path);
  Result<std::unique_ptr<MappedRecording>> try_make(const std::string& name, std::size_t bytes) const;
  void prune() const;

  std::mutex mutex_;
  std::vector<std::string> candidates_;
  const Log log_;
  int fd_ = -1;
  bool warned_ = false;
  std::string trouble_;  // the reasons why the previous candidates were not usable
  std::deque<std::string> ended_;
};

}  // namespace tutti
