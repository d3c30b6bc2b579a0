// What is never ended, since a GPU may still use it. Any thread.
#pragma once

#include <deque>
#include <mutex>
#include <utility>

namespace tutti::detail {

template <class T>
void leave_for_good(T what) {
  static std::mutex mutex;
  static auto& kept = *new std::deque<T>;  // not destroyed at exit
  const std::scoped_lock lock(mutex);
  kept.push_back(std::move(what));
}

}  // namespace tutti::detail
