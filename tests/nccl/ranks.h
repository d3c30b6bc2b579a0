// For tests of NCCL's functions: runs ranks as threads or as processes, and gives each of them a communicator.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "nccl.h"
#include "tests/support/patience.h"
#include "tests/support/threads.h"

namespace tutti::nccl_test {

// Set before anything reads it, so that the ranks of the tests use loopback.
inline const int kOnLoopback = setenv("NCCL_SOCKET_IFNAME", "lo", 0);

// Time limit of a child, in seconds, so that no child outlives a broken test.
inline const unsigned kLongestChildS = static_cast<unsigned>(4 * test::patience() / std::chrono::seconds(1));

// Returns a description of the error on this rank, or an empty string.
using Body = std::function<std::string(ncclComm_t comm, int rank, int ranks)>;

inline std::string describe_failure(const char* call, ncclResult_t result) {
  return std::string(call) + " gave " + std::to_string(result) + ": " + ncclGetLastError(nullptr);
}

// Returns from the function with an error message if the call fails.
#define TUTTI_NCCL_TRY(call)                                                                                 \
  do {                                                                                                       \
    const ncclResult_t nccl_try_result = (call);                                                             \
    if (nccl_try_result != ncclSuccess) return ::tutti::nccl_test::describe_failure(#call, nccl_try_result); \
  } while (false)

#define TUTTI_NCCL_WANT(condition)                                                                    \
  do {                                                                                                \
    if (!(condition)) return std::string(#condition) + " is false, line " + std::to_string(__LINE__); \
  } while (false)

inline std::string run_made(const Body& body, ncclComm_t comm, int rank, int ranks) {
  std::string wrong = body(comm, rank, ranks);
  if (!wrong.empty()) {
    ncclCommAbort(comm);
    return wrong;
  }
  TUTTI_NCCL_TRY(ncclCommDestroy(comm));
  return {};
}

inline std::string run_rank(const Body& body, const ncclUniqueId& id, int rank, int ranks) {
  ncclComm_t comm = nullptr;
  TUTTI_NCCL_TRY(ncclCommInitRank(&comm, ranks, id, rank));
  return run_made(body, comm, rank, ranks);
}

inline void as_threads(int ranks, const Body& body) {
  std::vector<std::string> wrong(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
#if defined(__SANITIZE_THREAD__)
  // Ranks that find each other by an id map shared memory twice, as processes do. TSan does not see that a write at
  // one address and a read at the other address are ordered. Therefore the communicators are created together here.
  std::vector<ncclComm_t> comms(static_cast<std::size_t>(ranks));
  ASSERT_EQ(ncclCommInitAll(comms.data(), ranks, nullptr), ncclSuccess) << ncclGetLastError(nullptr);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    threads.emplace_back([&, rank, at] { wrong[at] = run_made(body, comms[at], rank, ranks); });
  }
#else
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { wrong[static_cast<std::size_t>(rank)] = run_rank(body, id, rank, ranks); });
  }
#endif
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(wrong[static_cast<std::size_t>(rank)], "") << "rank " << rank;
  }
}

// Returns the status of a child: 0 if it succeeded, 1 if its body failed (with a message on stderr), otherwise how
// it ended.
inline int status_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Starts one process for each rank. Rank 0 creates the id and gives it to the others through pipes, as programs do.
inline std::vector<pid_t> start_processes(int ranks, const Body& body) {
  std::vector<int> pipe_ends(static_cast<std::size_t>(2 * ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    if (pipe(&pipe_ends[static_cast<std::size_t>(2 * rank)]) != 0) ADD_FAILURE() << "no pipe";
  }
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(kLongestChildS);
      ncclUniqueId id;
      std::string wrong;
      if (rank == 0) {
        if (ncclGetUniqueId(&id) != ncclSuccess) wrong = ncclGetLastError(nullptr);
        for (int other = 1; other < ranks; ++other) {
          if (write(pipe_ends[static_cast<std::size_t>(2 * other + 1)], &id, sizeof(id)) != sizeof(id)) wrong = "pipe";
        }
      } else if (read(pipe_ends[static_cast<std::size_t>(2 * rank)], &id, sizeof(id)) != sizeof(id)) {
        wrong = "pipe";
      }
      if (wrong.empty()) wrong = run_rank(body, id, rank, ranks);
      if (!wrong.empty()) std::fprintf(stderr, "rank %d: %s\n", rank, wrong.c_str());
      _exit(wrong.empty() ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const int end : pipe_ends) close(end);
  return children;
}

inline void as_processes(int ranks, const Body& body) {
  const std::vector<pid_t> children = start_processes(ranks, body);
  for (std::size_t rank = 0; rank < children.size(); ++rank) {
    EXPECT_EQ(status_of(children[rank]), 0) << "rank " << rank;
  }
}

inline std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace tutti::nccl_test
