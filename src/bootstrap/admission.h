// Admission: the handshake with each new connection of a RendezvousServer. If the other side proves that it has the
// job's key and its rank fits the job, the host of the Admission (the server) takes over the connection. Otherwise the
// connection is refused with a reason, while the server keeps waiting for the real ranks. bootstrap_wire.h describes
// the messages. Only the server's thread uses it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/bootstrap_wire.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/server_connection.h"

namespace tutti::detail {

class AdmissionHost {
 public:
  // Returns the reason why a rank that has the key is refused. Empty if it is admitted.
  virtual std::string fault_of_rank(const wire::RankInfo& rank_info) const = 0;
  // True if the set-up has failed. A rank that cannot be admitted then gets no reason, because a rank that tries the
  // set-up again must look for the next server.
  virtual bool has_failed() const = 0;
  virtual void admit(const std::shared_ptr<RankConnection>& client, const wire::RankInfo& rank_info) = 0;
  // A connection has ended before it was admitted.
  virtual void unadmitted_ended() = 0;

 protected:
  ~AdmissionHost() = default;
};

class Admission {
 public:
  using ConnectionPtr = std::shared_ptr<RankConnection>;

  // `options` and `host` must outlive this object.
  Admission(const RendezvousServerOptions& options, AdmissionHost& host);

  // Begins the handshake with a new connection. The server accepts other connections meanwhile.
  void begin(const ConnectionPtr& client);
  // Closes the oldest connection that is not admitted yet. A rank that has the key needs only a moment, and connects
  // again.
  void close_oldest();
  // Adds a reason to refusals(), unless it is known already. The list is limited to a few reasons.
  void note_refusal(const std::string& reason);
  // The reasons of refusals, for the error if ranks do not join.
  const std::vector<std::string>& refusals() const { return refusals_; }
  // Closes all connections that are not admitted yet.
  void close_all();

 private:
  using Step = void (Admission::*)(const ConnectionPtr&);
  // Reads the next message of the handshake, and continues with `next`. A message that is too long is empty then.
  void read(const ConnectionPtr& client, std::size_t longest, Step next);
  void take_hello(const ConnectionPtr& client);
  std::string fault_of_hello(const ConnectionPtr& client) const;
  void take_answer(const ConnectionPtr& client);
  void begin_tls(const ConnectionPtr& client, const wire::RankInfo& rank_info);
  void take_rank_info(const ConnectionPtr& client, const wire::RankInfo& rank_info);
  void refuse(const ConnectionPtr& client, const std::string& reason);
  void end(const ConnectionPtr& client);

  const RendezvousServerOptions& options_;
  AdmissionHost& host_;
  const Tag job_;
  std::uint64_t connection_count_ = 0;  // number of connections so far
  // By connection number: connections that have not proved that they have the key, or that are being refused.
  std::map<std::uint64_t, ConnectionPtr> unauthenticated_;
  std::vector<std::string> refusals_;
};

}  // namespace tutti::detail
