//! Every order of a few operations, and every value that memory may give.

use pepd_loom::{admission, pipes, table};

#[test]
fn at_the_limit_one_comes_while_another_goes() {
    admission::one_comes_while_another_goes(2, 2, 9);
}

#[test]
fn below_the_limit_one_comes_while_another_goes() {
    admission::one_comes_while_another_goes(1, 2, 9);
}

#[test]
fn at_its_limit_a_source_comes_and_goes() {
    admission::one_comes_while_another_goes(2, 9, 2);
}

#[test]
fn below_its_limit_a_source_comes_and_goes() {
    admission::one_comes_while_another_goes(1, 9, 2);
}

#[test]
fn of_two_that_come_for_one_place_one_has_it() {
    admission::two_come_for_one_place();
}

#[test]
fn a_place_is_had_or_found_taken() {
    admission::one_comes_while_the_last_one_goes();
}

#[test]
fn limits_change_while_connections_come_and_go() {
    admission::the_limits_change_meanwhile();
}

#[test]
fn descriptors_run_out_and_come_back() {
    admission::descriptors_come_back();
}

#[test]
fn a_pipe_comes_back_to_a_smaller_pool() {
    pipes::the_share_shrinks_meanwhile(false);
}

#[test]
fn a_pipe_is_closed_while_the_pool_shrinks() {
    pipes::the_share_shrinks_meanwhile(true);
}

#[test]
fn a_leg_is_claimed_or_expires() {
    table::a_leg_is_claimed_or_expires();
}

#[test]
fn an_answer_meets_the_end() {
    table::an_answer_meets_the_end();
}

#[test]
fn a_repeated_syn_is_dialed_once() {
    table::a_repeated_syn_is_dialed_once();
}
