// The job key: a secret of at least kLeastKeyBytes bytes, with which the ranks of a job authenticate each other. The
// key is searched for in this order:
//
//   1. A unique id contains a secret. If 2 or 3 is configured as well, both keys are combined, because an id may be
//      passed through stores that others can read, so that the id alone must not be enough to join.
//   2. The option job_key, then a file: the option job_key_file, then TUTTI_JOB_KEY_FILE. (The options are those of
//      CommunicatorOptions or, for the process that makes a unique id, of UniqueIdOptions.)
//   3. TUTTI_JOB_KEY, in hexadecimal. `tutti run` makes one for each job.
//   4. The machine key: a file of this user that is created when it is first needed. Other users, except root, cannot
//      read it, and it is in a folder that machines normally do not share with each other, such as /run/user/1000. So
//      all ranks of a job that has no other key must run as one user on one machine.
//
// The bytes from any of these sources are hashed into a key of 32 bytes. Messages, logs and recordings never
// contain a key. Any thread may call these functions.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/crypto/hmac.h"
#include "bootstrap/bootstrap_wire.h"
#include "tutti/result.h"

namespace tutti {

struct JobKey {
  Key key{};
  wire::KeySource kind = wire::KeySource::kGiven;
  std::string origin;  // for messages, for example "the file /x (TUTTI_JOB_KEY_FILE)"
};

// Limits for the length of a configured key, in bytes, before it is hashed.
inline constexpr std::size_t kLeastKeyBytes = 16;
inline constexpr std::size_t kMostKeyBytes = 4096;

// Returns the key of source 2 if `file` is not empty, otherwise of source 3 if `hexadecimal` is not empty,
// otherwise of source 4. `variable` is the name of the option or variable that named the file, for messages.
// Errors: kConfig (a file that cannot be read, has a wrong length, belongs to another user than this one or root,
// or whose mode gives a permission to other users; hexadecimal text that is malformed or has a wrong length), kSystem
// (no folder is usable for the machine key, or this process lacks a resource such as file descriptors).
Result<JobKey> find_job_key(const std::string& file, std::string_view variable, const std::string& hexadecimal);

// Like find_job_key(), but returns nothing instead of the machine key (source 4) if both `file` and `hexadecimal`
// are empty.
Result<std::optional<JobKey>> configured_key(const std::string& file, std::string_view variable,
                                             const std::string& hexadecimal);

// The key of the options job_key and job_key_file: nothing if both are empty. `structure` is the name of the options
// for messages, for example "UniqueIdOptions". Errors: kInvalidArgument (both are given, or job_key has a wrong
// length), and those of find_job_key().
Result<std::optional<JobKey>> key_of_options(std::string_view job_key, const std::string& job_key_file,
                                             std::string_view structure);

// key_of_file() returns the key of a file of source 2, and key_of_text() the key of source 3. `variable` and the errors
// are those of find_job_key().
Result<JobKey> key_of_file(const std::string& path, std::string_view variable);
Result<JobKey> key_of_text(std::string_view hexadecimal);

// The key of source 4 (the machine key). Uses the first of these folders that is usable: the key file is created
// there, or read if it exists. All ranks of a user must pass the same folders, so that they find the same key.
// Errors: kSystem (no folder is usable, or the process lacks a resource such as file descriptors; it does not try the
// later folders then).
Result<JobKey> machine_key(std::span<const std::string> folders);

// Returns the folders that find_job_key() passes to machine_key(). Folders that depend only on the user id come
// first, because the environments of a job's ranks may differ. The folders in TMPDIR and XDG_CACHE_HOME come last,
// so they are used only if the others are unusable, for example because the system's temporary folder is read-only,
// or because another user has created a folder of that name there.
std::vector<std::string> machine_key_folders(uid_t user, const EnvironmentVariables& environment);

// Derives the key from the secret of a unique id. job_id_of_secret() derives the job id, from which nobody can
// compute the secret or the key.
JobKey key_of_secret(std::string_view secret);
// The key with which the ranks of a unique id authenticate: a combination of the id's key (`of_id`) and the
// configured key, or `of_id` alone if no key is configured.
JobKey key_of_id(const JobKey& of_id, const std::optional<JobKey>& configured);
std::string job_id_of_secret(std::string_view secret);

// Advice for error messages that explains how to give a key to all ranks ("give all ranks one key:
// TUTTI_JOB_KEY_FILE ...").
std::string_view how_to_give_a_key();

// The text of a refusal because the two sides of a handshake have different keys. The side that notices it, server
// or rank, calls this function. `here` is the key source of this side, `there` is the key source of the other side,
// and `who` names the other side ("rank 3", "the server").
std::string other_key_message(wire::KeySource here, wire::KeySource there, std::string_view who);

}  // namespace tutti
