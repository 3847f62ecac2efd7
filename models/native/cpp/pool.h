// Threads that share the chunks of one phase after the other.
//
// Each thread has a range of neighbouring chunks, so that it reads memory in one run, and helps out
// in those of others when it is done. The caller works too, and waits only for chunks that somebody
// has begun: a helper that the operating system does not run costs nothing but its help. Who waits
// spins for a while, since phases follow each other in microseconds, then sleeps: on a busy machine
// the other may need the very core.
#pragma once

#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

#include "vec.h"

namespace hr {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// The tile registers of the calling thread, shaped 16 rows x 64 bytes, while it computes.
inline void tiles_on() {
#if defined(__AMX_BF16__)
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int i = 0; i < 8; i++) {
    config.bytes[i] = 64;
    config.rows[i] = 16;
  }
  written(&config);
  _tile_loadconfig(&config);
#endif
}

inline void tiles_off() {
#if defined(__AMX_BF16__)
  _tile_release();
#endif
}

class Pool {
 public:
  explicit Pool(int num_threads) : ranges_(num_threads) {
    helpers_.reserve(num_threads);
    try {
      for (int i = 1; i < num_threads; i++) helpers_.emplace_back([this, i] { help(i); });
    } catch (const std::system_error&) {
      // the system gives no more threads: those that there are do all the work
    }
  }

  ~Pool() {
    closing_.store(true, std::memory_order_seq_cst);
    epoch_.fetch_add(1, std::memory_order_seq_cst);
    epoch_.notify_all();
    for (auto& helper : helpers_) helper.join();
  }

  int num_threads() const { return static_cast<int>(ranges_.size()); }

  // The calling thread runs phases between these two.
  void enter() { tiles_on(); }
  void leave() { tiles_off(); }

  // Calls work(chunk, thread) for each chunk in [0, num_chunks), in any order, on any thread.
  template <class Work>
  void run(int num_chunks, const Work& work) {
    if (num_chunks <= 1 || num_threads() == 1) {
      for (int chunk = 0; chunk < num_chunks; chunk++) work(chunk, 0);
      return;
    }
    call_ = [](const void* context, int chunk, int thread) {
      (*static_cast<const Work*>(context))(chunk, thread);
    };
    context_ = &work;
    done_.store(0, std::memory_order_relaxed);
    phase_++;
    const int num = num_threads();
    for (int i = num - 1; i >= 0; i--) {
      const uint64_t first = static_cast<uint64_t>(num_chunks) * i / num;
      const uint64_t end = static_cast<uint64_t>(num_chunks) * (i + 1) / num;
      ranges_[i].ticket.store(phase_ << kPhaseShift | end << kIndexBits | first,
                              std::memory_order_release);
    }
    epoch_.fetch_add(1, std::memory_order_seq_cst);
    if (num_asleep_.load(std::memory_order_seq_cst) > 0) epoch_.notify_all();
    share(0);
    for (int spins = 0; spins < kSpins; spins++) {
      if (done_.load(std::memory_order_acquire) == num_chunks) return;
      pause();
    }
    caller_waits_.store(true, std::memory_order_seq_cst);
    for (int done; (done = done_.load(std::memory_order_seq_cst)) < num_chunks;) done_.wait(done);
    caller_waits_.store(false, std::memory_order_relaxed);
  }

 private:
  // A ticket is (phase, end of the range, next chunk): who takes a chunk knows that the phase whose
  // work it reads is not over, since the chunk itself is not done.
  static constexpr int kIndexBits = 22;
  static constexpr int kPhaseShift = 2 * kIndexBits;
  static constexpr uint64_t kMask = (uint64_t{1} << kIndexBits) - 1;
  static constexpr int kSpins = 4000;  // some 0.1 to 0.2 ms

  struct alignas(64) Range {
    std::atomic<uint64_t> ticket{0};
  };

  static bool has_chunk(uint64_t ticket) {
    return (ticket & kMask) < ((ticket >> kIndexBits) & kMask);
  }

  // Work on one's own range, then on the others'. Returns whether there was anything to do.
  bool share(int thread) {
    bool worked = false;
    for (int i = 0; i < num_threads(); i++) {
      std::atomic<uint64_t>& ticket = ranges_[(thread + i) % num_threads()].ticket;
      while (has_chunk(ticket.load(std::memory_order_acquire))) {
        const uint64_t mine = ticket.fetch_add(1, std::memory_order_acq_rel);
        if (!has_chunk(mine)) break;
        call_(context_, static_cast<int>(mine & kMask), thread);
        done_.fetch_add(1, std::memory_order_seq_cst);
        if (thread != 0 && caller_waits_.load(std::memory_order_seq_cst)) done_.notify_all();
        worked = true;
      }
    }
    return worked;
  }

  bool spin_for_work(int thread) {
    for (int spins = 0; spins < kSpins; spins++) {
      if (share(thread)) return true;
      pause();
    }
    return false;
  }

  void help(int thread) {
    while (true) {
      uint32_t epoch;
      tiles_on();
      // the end is looked for behind the epoch to wait on, else its wake-up could be missed
      do epoch = epoch_.load(std::memory_order_seq_cst);
      while (!closing_.load(std::memory_order_seq_cst) && spin_for_work(thread));
      tiles_off();
      if (closing_.load(std::memory_order_seq_cst)) return;
      num_asleep_.fetch_add(1, std::memory_order_seq_cst);
      epoch_.wait(epoch, std::memory_order_seq_cst);
      num_asleep_.fetch_sub(1, std::memory_order_seq_cst);
    }
  }

  std::vector<Range> ranges_;
  uint64_t phase_ = 0;
  std::vector<std::thread> helpers_;
  alignas(64) std::atomic<uint32_t> epoch_{0};  // phases begun
  std::atomic<int> num_asleep_{0};
  std::atomic<bool> closing_{false};
  alignas(64) std::atomic<int> done_{0};
  std::atomic<bool> caller_waits_{false};
  alignas(64) void (*call_)(const void*, int, int) = nullptr;
  const void* context_ = nullptr;
};

}  // namespace hr
