// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/netns"
)

// These tables have two ages: one within the grace time, and one beyond it.
const (
	aSecond = time.Second
	anHour  = time.Hour
)

func TestVerdictOfEndpoint(t *testing.T) {
	const none, file, place, other, unseen = "nothing", "a file", "its namespace", "another namespace", "an error" // at the sandbox's path
	in, out, unknown := alive("in"), dead("out"), unsure("unknown")
	const late = awaitTime
	joined := netns.ID{Dev: 1, Ino: 2}
	awaitsSandbox := netns.ID{}
	for name, c := range map[string]struct {
		phase   state.Phase
		id      netns.ID
		age     time.Duration
		sandbox string
		docker  listing
		use     verdict // if Docker does not have it
		wanted  bool
		boot    string
		want    life.State
	}{
		"of another boot":                       {state.Joined, joined, aSecond, place, has, in, false, "before", life.Dead},
		"of another boot, and unseen":           {state.Joined, joined, aSecond, unseen, has, in, false, "before", life.Unsure},
		"killed in CreateEndpoint":              {state.Creating, awaitsSandbox, aSecond, none, notAsked, in, false, "", life.Dead},
		"waits for Join":                        {state.Created, awaitsSandbox, aSecond, none, notAsked, in, false, "", life.Alive},
		"Join never came":                       {state.Created, awaitsSandbox, anHour, none, notAsked, in, false, "", life.Dead},
		"Join never came, clock set back":       {state.Created, awaitsSandbox, -anHour, none, notAsked, in, false, "", life.Dead},
		"between Leave and DeleteEndpoint":      {state.Left, joined, aSecond, place, notAsked, in, false, "", life.Alive},
		"Docker lists no more what it left":     {state.Left, joined, aSecond, place, hasNot, out, false, "", life.Alive},
		"DeleteEndpoint lost":                   {state.Left, joined, anHour, place, notAsked, in, false, "", life.Dead},
		"DeleteEndpoint failed":                 {state.Deleting, joined, aSecond, place, notAsked, in, false, "", life.Dead},
		"runs":                                  {state.Joined, joined, anHour, place, notAsked, in, false, "", life.Alive},
		"runs, and Docker has it":               {state.Joined, joined, anHour, place, has, in, false, "", life.Alive},
		"runs, whatever Docker lists":           {state.Joined, joined, anHour, place, hasNot, in, false, "", life.Alive},
		"disconnected":                          {state.Joined, joined, anHour, place, hasNot, out, false, "", life.Dead},
		"disconnected, if the sandbox says so":  {state.Joined, joined, anHour, place, hasNot, unknown, false, "", life.Unsure},
		"disconnected, if that is looked at":    {state.Joined, joined, anHour, place, hasNot, verdict{}, false, "", life.Unsure},
		"sandbox gone":                          {state.Joined, joined, anHour, none, notAsked, in, false, "", life.Dead},
		"sandbox gone, and Docker has it":       {state.Joined, joined, anHour, none, has, in, false, "", life.Dead},
		"sandbox unseen":                        {state.Joined, joined, anHour, unseen, notAsked, in, false, "", life.Unsure},
		"sandbox unseen, and Docker has it not": {state.Joined, joined, anHour, unseen, hasNot, out, false, "", life.Unsure},
		"another sandbox in its place":          {state.Joined, joined, anHour, other, notAsked, in, false, "", life.Dead},
		"sandbox to come":                       {state.Joined, awaitsSandbox, aSecond, none, notAsked, in, false, "", life.Alive},
		"sandbox has come":                      {state.Joined, awaitsSandbox, anHour, place, notAsked, in, false, "", life.Alive},
		"sandbox never came":                    {state.Joined, awaitsSandbox, anHour, none, notAsked, in, false, "", life.Dead},
		"sandbox never came, or is hidden":      {state.Joined, awaitsSandbox, anHour, file, notAsked, in, false, "", life.Unsure},
		"sandbox hidden, and Docker has it":     {state.Joined, awaitsSandbox, anHour, file, has, in, false, "", life.Alive},
		"sandbox hidden, and Docker has it not": {state.Joined, awaitsSandbox, anHour, file, hasNot, out, false, "", life.Dead},

		// An endpoint waits for Docker's next call, or for its sandbox. It does not block others for
		// long, whatever dockerd has left at the path.
		"wanted, not yet there":    {state.Joined, awaitsSandbox, aSecond, file, notAsked, in, true, "", life.Alive},
		"wanted, never came":       {state.Joined, awaitsSandbox, late, file, notAsked, in, true, "", life.Dead},
		"wanted, exists":           {state.Joined, awaitsSandbox, late, place, notAsked, in, true, "", life.Alive},
		"wanted, runs":             {state.Joined, joined, late, place, notAsked, in, true, "", life.Alive},
		"wanted, unseen":           {state.Joined, awaitsSandbox, late, unseen, notAsked, in, true, "", life.Unsure},
		"wanted, joins":            {state.Joining, awaitsSandbox, aSecond, none, notAsked, in, true, "", life.Alive},
		"in the way, never joined": {state.Created, awaitsSandbox, late, none, notAsked, in, true, "", life.Dead},
		"in the way, cut short":    {state.Joining, awaitsSandbox, late, place, notAsked, in, true, "", life.Dead},
		"in the way, about to go":  {state.Left, joined, aSecond, place, notAsked, in, true, "", life.Alive},
		"in the way, never went":   {state.Left, joined, late, place, notAsked, in, true, "", life.Dead},
		"in the way of none":       {state.Left, joined, late, place, notAsked, in, false, "", life.Alive},
	} {
		now := time.Now()
		e := &state.Endpoint{Phase: c.phase, SandboxID: c.id, Changed: now.Add(-c.age), Boot: c.boot}
		f := evidence{now: now, grace: time.Minute, wanted: c.wanted, docker: c.docker, use: c.use, missing: c.sandbox == none}
		switch c.sandbox {
		case place:
			f.exists, f.sandbox = true, joined
		case other:
			f.exists, f.sandbox = true, netns.ID{Dev: 1, Ino: 3}
		case unseen:
			f.unseen = errors.New("too many open files")
		}
		if got := f.endpoint(e); got.state != c.want || got.why == "" && c.use.why != "" {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestVerdictOfLease(t *testing.T) {
	given := []netip.Addr{netip.MustParseAddr("10.1.0.5")}
	by, none, unknown := alive("an endpoint's"), dead("none's"), unsure("unknown")
	for name, c := range map[string]struct {
		l      state.Allocation
		age    time.Duration
		use    verdict
		docker listing
		want   life.State
	}{
		"an endpoint's":                      {state.Allocation{Endpoint: "e", Given: given}, anHour, by, hasNot, life.Alive},
		"an endpoint's from before the boot": {state.Allocation{Endpoint: "e", Given: given, Boot: "before"}, anHour, by, notAsked, life.Alive},
		"an endpoint's that cannot be read":  {state.Allocation{Endpoint: "e", Given: given, Boot: "before"}, anHour, unknown, hasNot, life.Unsure},
		"from before the boot":               {state.Allocation{Given: given, Boot: "before"}, aSecond, none, has, life.Dead},
		"of a driver that wrote no boot":     {state.Allocation{Given: given}, anHour, none, notAsked, life.Alive},
		"waits for its endpoint":             {state.Allocation{Given: given, Boot: "now"}, anHour, none, notAsked, life.Alive},
		"another driver's":                   {state.Allocation{Given: given, Boot: "now"}, anHour, none, has, life.Alive},
		"no container's":                     {state.Allocation{Given: given, Boot: "now"}, anHour, none, hasNot, life.Dead},
		"endpoint gone":                      {state.Allocation{Endpoint: "e", Given: given, Boot: "now"}, anHour, none, notAsked, life.Dead},
		"endpoint just gone":                 {state.Allocation{Endpoint: "e", Given: given, Boot: "now"}, aSecond, none, notAsked, life.Alive},
		"endpoint removed":                   {state.Allocation{Unbound: true, Given: given, Boot: "now"}, anHour, none, has, life.Dead},
		"endpoint just removed":              {state.Allocation{Unbound: true, Given: given, Boot: "now"}, aSecond, none, notAsked, life.Alive},
		"asked for, and never given":         {state.Allocation{Boot: "now"}, anHour, none, notAsked, life.Dead},
		"asked for":                          {state.Allocation{Boot: "now"}, aSecond, none, notAsked, life.Alive},
	} {
		f := evidence{now: time.Now(), boot: "now", grace: time.Minute, docker: c.docker, use: c.use}
		c.l.Since = f.now.Add(-c.age)
		if got := f.lease(&c.l); got.state != c.want || got.why == "" {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestVerdictOfNetworkAndPool(t *testing.T) {
	used, free, unknown := alive("used"), dead("free"), unsure("unknown")
	for name, c := range map[string]struct {
		deleted       bool
		docker        listing
		use           verdict
		network, pool life.State
	}{
		"not asked":                       {false, notAsked, free, life.Alive, life.Alive},
		"Docker has it":                   {false, has, free, life.Alive, life.Alive},
		"Docker has it not":               {false, hasNot, free, life.Dead, life.Dead},
		"Docker has it not, and it runs":  {false, hasNot, used, life.Alive, life.Dead},
		"Docker has it not, and may run":  {false, hasNot, unknown, life.Unsure, life.Dead},
		"not removed completely":          {true, notAsked, used, life.Dead, life.Alive},
		"not removed completely, and has": {true, has, used, life.Dead, life.Alive},
	} {
		f := evidence{docker: c.docker, use: c.use}
		if got := f.network(&state.Network{Deleted: c.deleted}); got.state != c.network || got.why == "" {
			t.Errorf("%s: network: %v", name, got)
		}
		if got := f.pool(new(state.Pool)); got.state != c.pool || got.why == "" {
			t.Errorf("%s: pool: %v", name, got)
		}
	}
}

// If Docker does not list an object, Docker may not know it yet, or was not asked about it.
func TestListing(t *testing.T) {
	before := time.Now()
	old, young := before.Add(-time.Second), before.Add(time.Second)
	mac, addr := "02:42:00:00:00:01", netip.MustParseAddr("10.1.0.5")
	with := engineNetwork{ID: "with"}
	with.IPAM.Options = map[string]string{optNetwork: "pods"}
	s := &dockerView{
		before: before, networks: []engineNetwork{{ID: "n"}, with},
		endpoints: map[string]map[string]engineEndpoint{"n": {"e": {}}},
		addresses: []engineEndpoint{{mac: mac, addrs: []netip.Addr{addr}}},
	}
	silent := &dockerView{before: before, silent: true}
	lease := func(network, mac string, since time.Time, given ...netip.Addr) *state.Allocation {
		return &state.Allocation{ID: leaseID(network, mac), Network: network, Given: given, Since: since}
	}
	for name, c := range map[string]struct{ got, want listing }{
		"network":                     {s.ofNetwork(&state.Network{ID: "n", Since: old}), has},
		"young network":               {s.ofNetwork(&state.Network{ID: "n", Since: young}), has},
		"another network":             {s.ofNetwork(&state.Network{ID: "x", Since: old}), hasNot},
		"another young network":       {s.ofNetwork(&state.Network{ID: "x", Since: young}), notAsked},
		"network, not asked":          {(*dockerView)(nil).ofNetwork(&state.Network{ID: "x", Since: old}), notAsked},
		"endpoint":                    {s.ofEndpoint(&state.Endpoint{Network: "n", ID: "e", Changed: old}), has},
		"another endpoint":            {s.ofEndpoint(&state.Endpoint{Network: "n", ID: "x", Changed: old}), hasNot},
		"another young endpoint":      {s.ofEndpoint(&state.Endpoint{Network: "n", ID: "x", Changed: young}), notAsked},
		"endpoint of another network": {s.ofEndpoint(&state.Endpoint{Network: "x", ID: "e", Changed: old}), notAsked},
		"endpoint, not asked":         {(*dockerView)(nil).ofEndpoint(&state.Endpoint{Network: "n", ID: "x", Changed: old}), notAsked},
		"pool":                        {s.ofPool(&state.Pool{Network: "pods", Since: old}), has},
		"pool by all options":         {s.ofPool(&state.Pool{Network: "x", Options: map[string]string{optNetwork: "pods"}, Since: old}), has},
		"another pool":                {s.ofPool(&state.Pool{Network: "x", Since: old}), hasNot},
		"another young pool":          {s.ofPool(&state.Pool{Network: "x", Since: young}), notAsked},
		"pool, not asked":             {(*dockerView)(nil).ofPool(&state.Pool{Network: "x", Since: old}), notAsked},
		"lease by MAC address":        {s.ofLease(lease("pods", mac, old)), has},
		"lease by address":            {s.ofLease(lease("pods", "02:42:00:00:00:02", old, addr)), has},
		"another lease":               {s.ofLease(lease("pods", "02:42:00:00:00:02", old, addr.Next())), hasNot},
		"another young lease":         {s.ofLease(lease("pods", "02:42:00:00:00:02", young, addr.Next())), notAsked},
		"lease, no answer":            {silent.ofLease(lease("pods", mac, old)), notAsked},
		"lease, not asked":            {(*dockerView)(nil).ofLease(lease("pods", mac, old)), notAsked},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", name, c.got, c.want)
		}
	}
}
