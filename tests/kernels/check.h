// A test harness in one header: each *_test.cc is one program, TEST registers, main runs all.
#ifndef TFE_BENCH_TESTS_KERNELS_CHECK_H_
#define TFE_BENCH_TESTS_KERNELS_CHECK_H_

#include <cstdio>
#include <iostream>
#include <type_traits>
#include <vector>

struct TestCase {
  const char* name;
  void (*run)();
};
inline std::vector<TestCase> all_tests;
inline bool test_failed = false;

struct RegisterTest {
  RegisterTest(const char* name, void (*run)()) { all_tests.push_back({name, run}); }
};

// Unary plus prints a uint8_t as a number.
template <typename T>
void Show(const char* label, const T& value) {
  if constexpr (std::is_arithmetic_v<T>) {
    std::cerr << label << +value << "\n";
  } else {
    std::cerr << label << value << "\n";
  }
}

template <typename A, typename B>
bool CheckEqual(const char* file, int line, const char* text, const A& a, const B& b) {
  if (a == b) return true;
  std::cerr << file << ":" << line << ": CHECK_EQ(" << text << ")\n";
  Show("  left:  ", a);
  Show("  right: ", b);
  test_failed = true;
  return false;
}

// A failed check ends its test: the values after it would only repeat the news.
#define CHECK_EQ(a, b) \
  do { if (!CheckEqual(__FILE__, __LINE__, #a ", " #b, (a), (b))) return; } while (0)
#define CHECK(condition) CHECK_EQ(static_cast<bool>(condition), true)
#define TEST(name)                                    \
  static void name();                                 \
  static const RegisterTest name##_test(#name, name); \
  static void name()

int main() {
  int failed = 0;
  for (const TestCase& test : all_tests) {
    test_failed = false;
    test.run();
    if (test_failed) std::cerr << "FAILED " << test.name << "\n";
    failed += test_failed;
  }
  std::printf("%d passed, %d failed\n", static_cast<int>(all_tests.size()) - failed, failed);
  return failed != 0;
}

#endif  // TFE_BENCH_TESTS_KERNELS_CHECK_H_
