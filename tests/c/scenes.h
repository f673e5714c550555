/* scenes.h - what a victim can be in the middle of, and what others do meanwhile. */
#ifndef SCENES_H
#define SCENES_H

#include "sleeper.h"

static const struct scene SCENES[] = {
    {"reserve", all_hold_one, come_with_two, play_reserve, NULL},
    {"release", all_hold_one, come_with_two, play_release, NULL},
    {"refuse", fill_all_caps, come_with_two, play_reserve, NULL},
    {"first reserve", renew_the_slot, come_with_nothing, play_reserve, NULL},
    {"set_limit", all_hold_one, come_with_two, play_set_limit, NULL},
    {"reserve two caps", all_hold_one, come_with_two, play_reserve_all, NULL},
    {"reserve two caps, undone", fill_last_cap, come_with_two, play_undo, NULL},
    {"close", all_hold_one, come_with_two, play_close, NULL},
    {"claim", all_hold_one, come_without_slot, play_claim, NULL},
    {"fork and claim", all_hold_one, come_without_slot, play_fork_and_claim, NULL},
    {"reclaim an idle owner", leave_a_dead_owner, come_with_two, play_reclaim, NULL},
    {"reclaim an intent", leave_an_intent, come_with_two, play_reclaim, NULL},
    {"reclaim a swap", leave_a_swap, come_with_two, play_reclaim, NULL},
    {"reclaim a helped swap", leave_a_helped_swap, come_with_two, play_reclaim, NULL},
    {"release to a sleeper", sleep_while_the_victim_takes_two, come_and_take_two, play_release, wake_by_reclaiming},
    {"wait like a sleeper", sleep_at_the_limit, come_with_nothing, play_wait, wake_by_a_release},
    {"limit for a sleeper", sleep_at_a_lower_limit, come_with_nothing, play_raise_limit,
     wake_by_reclaiming_or_the_limit},
    {"close for a sleeper", sleep_while_the_victim_takes_two, come_and_take_two, play_close, wake_by_reclaiming},
    {"reclaim for a sleeper", sleep_while_a_dead_owner_holds_one, come_with_nothing, play_reclaim,
     wake_by_reclaiming},
};
#define SCENE_COUNT (sizeof SCENES / sizeof *SCENES)
#define FIRST_SCENES 4 /* the core of it */
#define SLEEPER_SCENES 5 /* the last */

#endif
