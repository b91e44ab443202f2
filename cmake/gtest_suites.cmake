# Read by ctest: lists the suites of a GoogleTest program and adds one test for each (see tests.cmake). Variables: program,
# area, labels, timeout, scratch (the working directory), one_thread (a pattern of suites that do not get the label
# concurrency), waiting (patterns of suites that mostly wait, see tests.cmake), slots (of ctest, for each other suite),
# whole (true: one test for the whole program).
if(whole)
  add_test("${area}.all" "${program}" --gtest_brief=1)
  set_tests_properties("${area}.all" PROPERTIES LABELS "${labels}" TIMEOUT ${timeout} WORKING_DIRECTORY "${scratch}"
    PROCESSORS ${slots})
  return()
endif()

execute_process(COMMAND "${program}" --gtest_list_tests
                OUTPUT_VARIABLE listing ERROR_VARIABLE complaint RESULT_VARIABLE status TIMEOUT 60)
if(NOT status EQUAL 0)
  # The program is not built, or fails before main(): a test that fails reports this.
  add_test("${area}.cannot_list" "${program}" --gtest_list_tests)
  set_tests_properties("${area}.cannot_list" PROPERTIES LABELS "${labels}")
  return()
endif()

string(REGEX REPLACE "[ ]+#[^\n]*" "" listing "${listing}")   # "  # GetParam() = ...", "  # TypeParam = ..."
string(REGEX MATCHALL "[^\n]+" lines "${listing}")
set(suites)
set(suite)
foreach(line IN LISTS lines)
  if(line MATCHES "^([^ ]+)\\.$")
    set(suite "${CMAKE_MATCH_1}")
  elseif(suite AND line MATCHES "^  ")
    list(APPEND suites "${suite}")   # only suites with a case to run
  endif()
endforeach()
list(REMOVE_DUPLICATES suites)

foreach(suite IN LISTS suites)
  add_test("${area}.${suite}" "${program}" "--gtest_filter=${suite}.*" --gtest_brief=1)
  set(of_suite ${labels})
  if("${area}.${suite}" MATCHES "${one_thread}")
    list(REMOVE_ITEM of_suite concurrency)
  endif()
  set_tests_properties("${area}.${suite}" PROPERTIES
    LABELS "${of_suite}" TIMEOUT ${timeout} WORKING_DIRECTORY "${scratch}" PROCESSORS ${slots})
  foreach(pattern IN LISTS waiting)
    if("${area}.${suite}" MATCHES "${pattern}")
      # The cost lets ctest start these suites first; it knows no times before it has run them once.
      set_tests_properties("${area}.${suite}" PROPERTIES PROCESSORS 1 COST 1000 RESOURCE_LOCK "waiting ${pattern}")
    endif()
  endforeach()
  # One at a time: some fill the memory of the GPU, and others start MPS, which programs beside them would use.
  if(area STREQUAL "cuda")
    set_tests_properties("${area}.${suite}" PROPERTIES RESOURCE_LOCK gpu)
  endif()
endforeach()
