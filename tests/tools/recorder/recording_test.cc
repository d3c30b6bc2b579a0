// Tests of recordings: a recording is read as it was written, damaged and half-written records are rejected, old
// files are removed, and the files of running processes stay.
#include "tools/recorder/recording.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "job/recorder.h"
#include "tests/support/failing_allocations.h"
#include "tools/recorder/doctor.h"
#include "tools/recorder/flight_dump.h"
#include "tools/recorder/metrics.h"
#include "tools/recorder/top.h"
#include "tools/recorder/trace.h"
#include "tutti/types.h"

namespace {
std::atomic<int> interruptions = 0;
}  // namespace

// Replaces the C library's posix_fallocate() in this whole program. It fails with EINTR `interruptions` times, as if
// a signal arrived.
extern "C" int posix_fallocate(int fd, off_t offset, off_t bytes) {
  if (interruptions > 0) return --interruptions, EINTR;
  return fallocate(fd, 0, offset, bytes) == 0 ? 0 : errno;
}

namespace tutti::tool {
namespace {

class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "tutti-recording-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }
  std::shared_ptr<RecordingFolder> open() const {
    return std::make_shared<RecordingFolder>(std::vector<std::string>{path_}, Log(LogLevel::kOff, 0));
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) names.push_back(entry.path());
    return names;
  }
  Recording only() const {
    EXPECT_EQ(files().size(), 1U);
    auto read = read_recording(files().front());
    EXPECT_TRUE(read.ok());
    return read.value();
  }

 private:
  std::string path_;
};

CallTag tag_of(std::uint64_t sequence) {
  return {.sequence = sequence,
          .count = 100 * sequence,
          .kind = static_cast<std::uint8_t>(CollectiveKind::kAllReduce),
          .type = static_cast<std::uint8_t>(DataType::kFloat32),
          .op = static_cast<std::uint8_t>(ReduceOp::kSum),
          .algorithm = static_cast<std::uint8_t>(Algorithm::kRing)};
}

std::unique_ptr<Recorder> recorder_in(const Folder& folder, std::uint32_t rank = 0, std::uint32_t capacity = 16) {
  return Recorder::create(folder.open(), {.job = 1,
                                          .communicator = 1,
                                          .rank = rank,
                                          .ranks = 4,
                                          .job_rank = rank,
                                          .transport = "shm",
                                          .capacity = capacity});
}

std::vector<std::byte> bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

TEST(Recording, WhatIsWrittenIsRead) {
  const Folder folder;
  const auto recorder = recorder_in(folder, 3);
  ASSERT_NE(recorder, nullptr);
  const std::int64_t before_ns = recording::unix_ns();
  for (std::uint64_t sequence = 1; sequence <= 20; ++sequence) {
    recorder->end(recorder->begin(tag_of(sequence), recording::CallPath::kDirect), recorder->now());
  }
  recorder->end(recorder->begin(tag_of(21), recording::CallPath::kMailboxes), 0);
  const std::uint64_t send = recorder->begin(tag_of(7), recording::CallPath::kTransfers, recording::kSends);
  recorder->add(send, {.bytes = 4096, .peer = 2, .transfers = 3, .variable_call = 9});
  const Error error{ErrorCode::kPeerLost, ErrorScope::kCommunicator, 2, "rank 2 is gone"};
  recorder->end_badly(recorder->begin(tag_of(22), recording::CallPath::kMessages), error, 22);
  const Recording read = folder.only();
  EXPECT_EQ(read.rank, 3U);
  EXPECT_EQ(read.ranks, 4U);
  EXPECT_EQ(read.transport, "shm");
  EXPECT_EQ(read.pid, getpid());
  EXPECT_EQ(read.process, ProcessState::kRunning);
  EXPECT_FALSE(read.ended_ns.has_value());
  EXPECT_EQ(read.begun, 23U);
  ASSERT_EQ(read.calls.size(), 16U);
  EXPECT_EQ(read.calls.front().tag, tag_of(8)) << "the oldest of the 16 calls that are kept";
  EXPECT_TRUE(read.calls.front().end_ns.has_value());
  constexpr std::int64_t kSlackNs = 50'000'000;  // the two clocks are not read at the same time
  EXPECT_GT(read.calls.front().start_ns, before_ns - kSlackNs);
  EXPECT_LT(*read.calls.front().end_ns, recording::unix_ns() + kSlackNs);
  EXPECT_FALSE(read.calls[13].end_ns.has_value()) << "the call was so short that its end was not measured";
  EXPECT_EQ(describe(read.calls[14]), "all_reduce_v, send #7 to rank 2 (700 float32) and 2 other transfers");
  EXPECT_EQ(read.calls[14].variable_call, 9U);
  EXPECT_EQ(read.running(), &read.calls[14]);
  EXPECT_TRUE(read.calls[15].failed());
  EXPECT_EQ(read.calls[15].outcome.culprit, 2);
  ASSERT_TRUE(read.first_failure.has_value());
  EXPECT_EQ(read.first_failure->text, "rank 2 is gone");
  EXPECT_EQ(read.torn, 0U);
}

TEST(Recording, OnlyTheWaitOfTheCallUnderWayCounts) {
  const Folder folder;
  const auto recorder = recorder_in(folder);
  const std::uint64_t first = recorder->begin(tag_of(1), recording::CallPath::kMailboxes);
  const std::vector<std::uint32_t> waited{2};
  recorder->waits({.serial = first, .sequence = 1, .waited = waited, .absent = waited, .text = "no value"}, 1);
  ASSERT_NE(folder.only().current_wait(), nullptr);
  EXPECT_EQ(folder.only().wait->text, "no value");
  EXPECT_EQ(folder.only().wait->absent, waited);
  recorder->end(first, recorder->now());
  EXPECT_EQ(folder.only().current_wait(), nullptr);
  recorder->begin(tag_of(2), recording::CallPath::kMailboxes);
  EXPECT_EQ(folder.only().current_wait(), nullptr);
}

TEST(Recording, TotalsCountCallsThatWereOverwritten) {
  const Folder folder;
  const auto recorder = recorder_in(folder);
  const auto all_reduce = static_cast<std::uint8_t>(CollectiveKind::kAllReduce);
  const auto all_gather = static_cast<std::uint8_t>(CollectiveKind::kAllGather);
  for (std::uint64_t sequence = 1; sequence <= 40; ++sequence) {
    recorder->end(recorder->begin(tag_of(sequence), recording::CallPath::kDirect), recorder->now());
    recorder->count(all_reduce, 100, true);
  }
  recorder->count(all_gather, 1000, true);
  recorder->count(all_gather, 500, false);  // the second segment of the same call
  recorder->enqueued(tag_of(41), 0);
  recorder->enqueued(tag_of(42), 0);
  recorder->failed({ErrorCode::kTimeout, ErrorScope::kCommunicator, 1, "late"}, 40);
  recorder->failed({ErrorCode::kDamaged, ErrorScope::kCommunicator, 1, "damaged"}, 40);
  recorder->failed({ErrorCode::kTimeout, ErrorScope::kCommunicator, 1, "late"}, 40);
  const RecordedTotals totals = folder.only().totals;
  EXPECT_EQ(totals.kinds[all_reduce].calls, 40U);
  EXPECT_EQ(totals.kinds[all_reduce].bytes, 4000U);
  EXPECT_EQ(totals.kinds[all_reduce].device_calls, 2U);
  EXPECT_EQ(totals.kinds[all_gather].calls, 1U);
  EXPECT_EQ(totals.kinds[all_gather].bytes, 1500U);
  EXPECT_EQ(totals.kinds[all_gather].device_calls, 0U);
  EXPECT_EQ(totals.errors[static_cast<std::size_t>(ErrorCode::kTimeout)], 2U);
  EXPECT_EQ(totals.errors[static_cast<std::size_t>(ErrorCode::kDamaged)], 1U);
  EXPECT_EQ(totals.errors[static_cast<std::size_t>(ErrorCode::kAborted)], 0U);
}

TEST(Recording, WaitsForAPeerAreSummed) {
  constexpr std::int64_t kMs = 1'000'000;
  const Folder folder;
  const auto recorder = recorder_in(folder);
  const std::vector<std::uint32_t> waited{1, 2};
  const std::vector<std::uint32_t> absent{2};
  const auto sample = [&](std::uint64_t serial, std::int64_t now_ms) {
    recorder->waits({.serial = serial, .sequence = serial / 2, .waited = waited, .absent = absent, .text = "no value"},
                    now_ms * kMs);
  };
  sample(2, 1000);  // the wait counts from here on
  sample(2, 1050);
  sample(2, 1100);
  recorder->moved();
  sample(2, 1900);  // it made progress between the samples
  sample(2, 1960);
  sample(4, 2500);  // another call
  sample(4, 2501);
  sample(4, 900'000);  // this rank was stopped; at most one second counts
  const Recording read = folder.only();
  ASSERT_EQ(read.peer_totals.size(), 4U);
  constexpr std::uint64_t kSumNs = (100 + 60 + 1 + 1000) * kMs;
  EXPECT_EQ(read.peer_totals[1].waited_ns, kSumNs);
  EXPECT_EQ(read.peer_totals[2].waited_ns, kSumNs);
  EXPECT_EQ(read.peer_totals[2].absent_ns, kSumNs);
  EXPECT_EQ(read.peer_totals[1].absent_ns, 0U);
  EXPECT_EQ(read.peer_totals[0].waited_ns + read.peer_totals[3].waited_ns, 0U);
}

TEST(Recording, HasTheSegmentsThatWereSentAgainToEachPeer) {
  const Folder folder;
  const auto recorder = recorder_in(folder);
  recorder->retransmissions(1, 0);
  recorder->retransmissions(2, 7);
  const std::vector<RecordedPeerTotals> totals = folder.only().peer_totals;
  EXPECT_EQ(totals.at(0).retransmissions, std::nullopt);
  EXPECT_EQ(totals.at(1).retransmissions, 0U);
  EXPECT_EQ(totals.at(2).retransmissions, 7U);
}

TEST(Recording, OfTwoOfOneRankTheNewerOneIsKept) {
  std::vector<Recording> all(4);
  for (std::uint32_t i = 0; i < 4; ++i) {
    all[i].rank = i / 2;
    all[i].pid = static_cast<std::int32_t>(i + 1);
    all[i].made_ns = i == 0 ? 100 : i;
  }
  keep_newest_of_each_rank(all);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].pid, 1);
  EXPECT_EQ(all[1].pid, 4);
}

TEST(Recording, ACommunicatorThatEndsWellLeavesAFewFilesOnly) {
  const Folder folder;
  const auto opened = folder.open();
  for (std::uint64_t i = 1; i <= 20; ++i) {
    const auto made = Recorder::create(opened, {.job = i, .communicator = i, .transport = "none", .capacity = 16});
    ASSERT_NE(made, nullptr);
  }
  EXPECT_EQ(folder.files().size(), 8U);
  for (const std::string& name : folder.files()) EXPECT_TRUE(name.ends_with(".end")) << name;
}

TEST(Recording, AForkedCopyEndsNothing) {
  const Folder folder;
  auto recorder = recorder_in(folder);
  const pid_t child = fork();
  if (child == 0) {
    recorder.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(folder.files().size(), 1U);
  EXPECT_TRUE(folder.files().front().ends_with(recording::kSuffix)) << folder.files().front();
  EXPECT_FALSE(folder.only().ended_ns.has_value());
}

TEST(Recording, OldFilesGoAndThoseOfLivingProcessesStay) {
  const Folder folder;
  const auto living = recorder_in(folder, 1);
  const pid_t child = fork();
  if (child == 0) {
    auto abandoned = recorder_in(folder, 2);
    _exit(abandoned.release() == nullptr ? 1 : 0);  // like a killed process, it destroys nothing
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  ASSERT_EQ(folder.files().size(), 2U);
  for (const std::string& name : folder.files()) {  // make the files two days old
    timespec times[2]{};
    times[0].tv_sec = times[1].tv_sec = recording::unix_ns() / 1'000'000'000 - 2 * 24 * 3600;
    ASSERT_EQ(utimensat(AT_FDCWD, name.c_str(), times, 0), 0);
  }
  const auto next = recorder_in(folder, 3);
  std::vector<std::uint32_t> ranks;
  for (const std::string& name : folder.files()) ranks.push_back(read_recording(name).value().rank);
  std::sort(ranks.begin(), ranks.end());
  EXPECT_EQ(ranks, (std::vector<std::uint32_t>{1, 3}));
}

// A process that is killed while it makes a recording leaves a file without a header. After a minute it counts as old.
TEST(Recording, FilesWithoutAHeaderGoAfterAMinute) {
  const Folder folder;
  const std::int64_t now_s = recording::unix_ns() / 1'000'000'000;
  const auto add = [&](std::uint32_t rank, std::size_t bytes, std::int64_t age_s, std::string_view suffix) {
    std::string name = folder.path() + "/" + recording::file_name(1, 1, rank, 1);
    name.replace(name.size() - recording::kSuffix.size(), recording::kSuffix.size(), suffix);
    std::ofstream(name) << std::string(bytes, '\0');
    timespec times[2]{};
    times[0].tv_sec = times[1].tv_sec = now_s - age_s;
    EXPECT_EQ(utimensat(AT_FDCWD, name.c_str(), times, 0), 0);
    return name;
  };
  const std::string zeros = add(1, 4096, 120, recording::kSuffix);
  const std::string empty = add(2, 0, 120, recording::kSuffix);
  const std::string young = add(3, 4096, 30, recording::kSuffix);
  // Of the removable files the newest 256 stay, and these are newer.
  for (std::uint32_t rank = 100; rank < 356; ++rank) add(rank, 1, 0, recording::kEndedSuffix);
  const auto next = recorder_in(folder, 4);
  EXPECT_FALSE(std::filesystem::exists(zeros));
  EXPECT_FALSE(std::filesystem::exists(empty));
  EXPECT_TRUE(std::filesystem::exists(young));
}

TEST(Recording, AFailedAllocationLeavesNoFile) {
  namespace failing = test::failing_allocations;
  bool made = false;
  std::int64_t allocation = 0;
  while (!made) {
    const Folder folder;
    failing::set_counted(0);
    failing::fail_after(++allocation, false);
    try {
      made = recorder_in(folder) != nullptr;
    } catch (const std::bad_alloc&) {
    }
    failing::fail_after(0, false);
    EXPECT_EQ(folder.files().size(), made ? 1U : 0U) << "allocation " << allocation << " failed";
  }
  EXPECT_GT(allocation, 5) << "too few allocations failed: creating a recorder makes more of them";
}

TEST(Recording, FoldersOfOthersAreRefused) {
  const Folder folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 0777), 0);
  EXPECT_EQ(recorder_in(folder), nullptr);
  ASSERT_EQ(chmod(folder.path().c_str(), 0700), 0);
  const std::string link = folder.path() + "/link";
  std::filesystem::create_directory_symlink(folder.path(), link);
  RecordingFolder by_link({link}, Log(LogLevel::kOff, 0));
  EXPECT_EQ(by_link.make("tutti-x.rec", 4096), nullptr);
}

TEST(Recording, TheNextFolderServesWhereOneCannotBeHad) {
  const Folder folder;
  RecordingFolder opened({"/proc/none", folder.path() + "/a file", folder.path()}, Log(LogLevel::kOff, 0));
  std::ofstream(folder.path() + "/a file") << "in the way";
  EXPECT_NE(opened.make("tutti-x.rec", 4096), nullptr);
  EXPECT_EQ(opened.make("tutti-x.rec", 4096), nullptr) << "the name is in use, and no file may be overwritten";
  EXPECT_NE(opened.make("tutti-y.rec", 4096), nullptr) << "the folder can still be used";
}

// posix_fallocate() can return early when the process receives a signal or is stopped.
TEST(Recording, AnInterruptedSystemCallDoesNotKeepAFileFromBeingMade) {
  const Folder folder;
  RecordingFolder opened({folder.path()}, Log(LogLevel::kOff, 0));
  interruptions = 3;
  EXPECT_NE(opened.make("tutti-x.rec", 4096), nullptr);
  EXPECT_EQ(interruptions.exchange(0), 0);
}

// A reader runs at the same time as the writer. Every call that the reader accepts must be one that was written.
TEST(Recording, TornRecordsAreNotTaken) {
  const Folder folder;
  const auto recorder = recorder_in(folder);
  std::atomic<bool> ends{false};
  std::thread writer([&] {
    for (std::uint64_t sequence = 1; !ends.load(); ++sequence) {
      recorder->end(recorder->begin(tag_of(sequence), recording::CallPath::kDirect), 0);
    }
  });
  std::size_t whole = 0;
  for (int round = 0; round < 300; ++round) {
    const Recording read = folder.only();
    whole += read.calls.size();
    for (const RecordedCall& call : read.calls) {
      EXPECT_EQ(call.tag, tag_of(call.tag.sequence));
      EXPECT_EQ(call.number, call.tag.sequence);
    }
  }
  ends = true;
  writer.join();
  EXPECT_GT(whole + 1, 0U);
  auto bytes = bytes_of_file(folder.files().front());
  ASSERT_EQ(parse_recording(bytes, bytes, {})->calls.size(), 16U);
  auto other = bytes;
  other[sizeof(recording::Header) + 16] ^= std::byte{1};  // the record changed between the two copies
  EXPECT_EQ(parse_recording(bytes, other, {})->calls.size(), 15U);
  EXPECT_EQ(parse_recording(bytes, other, {})->torn, 1U);
  bytes[sizeof(recording::Header)] ^= std::byte{1};  // an odd serial: the writer died while it wrote the record
  EXPECT_EQ(parse_recording(bytes, bytes, {})->calls.size(), 15U);
}

TEST(Recording, DamagedFilesDoNoHarm) {
  const Folder folder;
  const auto recorder = recorder_in(folder);
  for (std::uint64_t sequence = 1; sequence <= 20; ++sequence)
    recorder->begin(tag_of(sequence), recording::CallPath::kDirect);
  recorder->failed({ErrorCode::kSystem, ErrorScope::kCall, 1, std::string(2000, 'x')}, 3);
  const std::vector<std::uint32_t> waited(100, 7);
  recorder->waits({.serial = 40, .sequence = 20, .waited = waited, .absent = waited, .text = std::string(2000, 'y')},
                  1);
  const auto good = bytes_of_file(folder.files().front());
  ASSERT_TRUE(parse_recording(good, good, {}).ok());
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  std::size_t read_well = 0;
  for (int round = 0; round < 3000; ++round) {
    auto bad = good;
    const std::size_t changes = random() % 8 + 1;
    for (std::size_t i = 0; i < changes; ++i) {
      const std::size_t within = random() % 2 == 0 ? sizeof(recording::Header) : bad.size();
      bad[random() % within] = static_cast<std::byte>(random() % 4 == 0 ? 0xff : random());
    }
    if (random() % 8 == 0) bad.resize(random() % (bad.size() + 1));
    const auto read = parse_recording(bad, bad, {.ticks = random(), .steady_ns = 5});
    if (!read) continue;
    ++read_well;
    const std::vector<Recording> all{*read, *read};
    EXPECT_FALSE(doctor_report(all, recording::unix_ns()).empty()) << "seed " << seed;
    top_table(all, recording::unix_ns());
    EXPECT_TRUE(nlohmann::json::accept(chrome_trace(all, recording::unix_ns()))) << "seed " << seed;
    EXPECT_FALSE(metrics_text(all, 0, MetricsFormat::kOpenMetrics, recording::unix_ns()).empty()) << "seed " << seed;
    EXPECT_EQ(flight_dumps(std::vector<Recording>{*read}).dumps.size(), 1U) << "seed " << seed;
  }
  EXPECT_GT(read_well, 100U) << "most damaged files must still be readable";
}

// This can fail only in the build with the address sanitizer, which also checks for undefined behaviour.
TEST(Recording, ClocksThatLieFarApartDoNoHarm) {
  const Folder folder;
  const auto recorder = recorder_in(folder);
  recorder->begin(tag_of(1), recording::CallPath::kDirect);
  auto bad = bytes_of_file(folder.files().front());
  const auto set = [&](std::size_t offset, std::uint64_t value) {
    std::memcpy(bad.data() + offset, &value, sizeof(value));
  };
  const std::size_t made = offsetof(recording::Header, made);
  const std::size_t latest = offsetof(recording::Header, latest);
  set(made + offsetof(recording::Anchor, ticks), 1);
  set(made + offsetof(recording::Anchor, steady_ns), 0x8000'0000'0000'0001);  // the smallest possible value
  set(latest + offsetof(recording::Anchor, ticks), 1000);
  set(latest + offsetof(recording::Anchor, steady_ns), 0x7fff'ffff'ffff'ffff);
  const auto read = parse_recording(bad, bad, {});
  ASSERT_TRUE(read.ok());
  EXPECT_FALSE(doctor_report(std::vector<Recording>{*read}, recording::unix_ns()).empty());
}

TEST(RecordingFolders, AreOfTheUserAndHonourTmpdir) {
  const std::string own = "/tutti-" + std::to_string(geteuid());
  using Folders = std::vector<std::string>;
  EXPECT_EQ(recording::folders("/chosen", {{"TMPDIR", "/scratch"}}), Folders{"/chosen"});
  EXPECT_EQ(recording::folders("", {}), (Folders{P_tmpdir + own, "/dev/shm" + own}));
  EXPECT_EQ(recording::folders("", {{"XDG_RUNTIME_DIR", "/run/user/7"}, {"TMPDIR", "/scratch/"}}),
            (Folders{"/run/user/7/tutti", "/scratch" + own, P_tmpdir + own, "/dev/shm" + own}));
  EXPECT_EQ(recording::folders("", {{"XDG_RUNTIME_DIR", ""}, {"TMPDIR", "here"}}), recording::folders("", {}))
      << "only absolute paths count, because ranks and tools may run in different folders";
  EXPECT_EQ(recording::folders("", {{"TMPDIR", std::string(P_tmpdir) + "/"}}), recording::folders("", {}));
  EXPECT_EQ(recording::folders("", {{"TMPDIR", "/"}}), recording::folders("", {}));
}

TEST(RecordingFolders, OfTwoNamesAreReadOnce) {
  const Folder folder;
  const std::unique_ptr<Recorder> recorder = recorder_in(folder);  // it removes its file at the end
  const std::string link = folder.path() + "/link";
  std::filesystem::create_directory_symlink(folder.path(), link);
  std::vector<std::string> troubles;
  EXPECT_EQ(read_recordings({folder.path(), link, folder.path() + "/"}, troubles).size(), 1U);
}

TEST(Recording, WhatIsNoneIsToldSo) {
  const Folder folder;
  std::ofstream(folder.path() + "/tutti-a.rec") << "short";
  const auto read = read_recording(folder.path() + "/tutti-a.rec");
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.error().message.find("too short"), std::string::npos);
  EXPECT_FALSE(read_recording(folder.path()).ok()) << "a folder is not a recording";
  EXPECT_FALSE(read_recording(folder.path() + "/none").ok());
  const std::unique_ptr<Recorder> recorder = recorder_in(folder);  // it removes its file at the end
  std::vector<std::string> troubles;
  const std::vector<Recording> recordings = read_recordings({folder.path(), "/nonexistent"}, troubles);
  ASSERT_EQ(recordings.size(), 1U);
  EXPECT_EQ(troubles.size(), 1U);
  std::vector<std::byte> older = bytes_of_file(recordings.front().path);
  older.at(offsetof(recording::Header, version)) = std::byte{recording::kVersion - 1};
  EXPECT_NE(parse_recording(older, older, {}).error().message.find("has version"), std::string::npos);
}

}  // namespace
}  // namespace tutti::tool
