// RecordingFolder: where the recordings of a job's rank are made: a folder of this user's alone, files 0600. Old files
// of processes that are dead, and of communicators that ended well, are removed when it is opened; never those of
// living ones. Thread-safe.
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

// A new file, mapped. Unmapped by its destructor; the file stays.
class MappedRecording {
 public:
  MappedRecording(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  ~MappedRecording();
  MappedRecording(const MappedRecording&) = delete;
  MappedRecording& operator=(const MappedRecording&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

class RecordingFolder {
 public:
  // `candidates`: folders by preference; one that is missing is made. Opens none before the first make().
  RecordingFolder(std::vector<std::string> candidates, Log log);
  ~RecordingFolder();
  RecordingFolder(const RecordingFolder&) = delete;
  RecordingFolder& operator=(const RecordingFolder&) = delete;

  // A file of zeros in memory that is there: no later access can fail for lack of room. Null: no candidate serves; the
  // first time, a line of the log says why.
  std::unique_ptr<MappedRecording> make(const std::string& name, std::size_t bytes);
  // Its communicator has ended well: of these, this job's rank keeps the last few.
  void ended_well(const std::string& name);

 private:
  bool open();
  Status open_one(const std::string& path);
  Result<std::unique_ptr<MappedRecording>> try_make(const std::string& name, std::size_t bytes) const;
  void prune() const;

  std::mutex mutex_;
  std::vector<std::string> candidates_;
  const Log log_;
  int fd_ = -1;
  bool told_ = false;
  std::string trouble_;  // why the candidates before did not serve
  std::deque<std::string> ended_;
};

}  // namespace tutti
