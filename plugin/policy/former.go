// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
)

// A search for connections of a former pod takes 6 ms and more, because the kernel walks all of connection
// tracking. So a DEL notes which addresses pods had, and an ADD searches only if its address is noted. The file has
// four bytes for each hash of an address, so it does not grow. A boot ends the file and the connections. The bytes
// say when the pod ended, so that an ADD knows whether the agent may have missed that.
const (
	formerSlots = 1 << 16
	stampBytes  = 4
)

// lately is the longest time between an agent's reading of the pods' records and its load of the program that it
// makes of them. It usually takes less than 0.3 s.
const lately = 12 * time.Second

// tick is the unit of the noted times.
const tick = time.Second

// stamp is a time since the boot in ticks. 0 means that nothing is noted.
type stamp uint32

func stampOf(at time.Duration) stamp { return stamp(at/tick) + 1 } //nolint:gosec // for 136 years

// age returns how old a stamp is, and up to a tick more.
func (s stamp) age(now time.Duration) time.Duration { return max(0, now-time.Duration(s-1)*tick) }

// isLate reports whether a stamp is at most lately old.
func (s stamp) isLate(now time.Duration) bool { return s != 0 && s.age(now) <= lately+tick }

// isBefore reports whether a stamp may be from before the start of an agent that has run for this long.
func (s stamp) isBefore(runs, now time.Duration) bool { return s != 0 && s.age(now)+tick >= runs }

// sinceBoot reads a clock that does not change with the time of day.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // the clock exists
	return time.Duration(ts.Nano())
}

func formerFile(p paths.Paths) string { return filepath.Join(p.Run, "policy.former") }

func slotOf(a netip.Addr) int64 {
	h := fnv.New64a()
	b := a.As16()
	_, _ = h.Write(b[:])
	return int64(h.Sum64()%formerSlots) * stampBytes
}

// noteFormer notes that pods had these addresses.
func noteFormer(p paths.Paths, addrs []netip.Addr) error {
	if len(addrs) == 0 {
		return nil
	}
	if err := durable.MakeDir(p.Run); err != nil {
		return err
	}
	return mark(p, os.O_CREATE, addrs, stampOf(sinceBoot()))
}

// hadFormer reports whether a pod may have had one of these addresses. If the file cannot be read, it
// returns true.
func hadFormer(p paths.Paths, addrs []netip.Addr) bool {
	return noted(p, addrs, func(s stamp) bool { return s != 0 })
}

// hadFormerLately reports whether a pod may have had one of these addresses a moment ago.
func hadFormerLately(p paths.Paths, addrs []netip.Addr) bool {
	now := sinceBoot()
	return noted(p, addrs, func(s stamp) bool { return s.isLate(now) })
}

// hadFormerBefore reports whether a pod may have had one of these addresses before the agent loaded its first
// program. Another agent may have loaded a program without that pod, and ended before it ended the pod's
// connections. The agent that runs knows nothing of them.
func hadFormerBefore(p paths.Paths, addrs []netip.Addr) bool {
	since, err := mirror.LockedSince(p)
	runs, now := time.Since(since), sinceBoot()
	return noted(p, addrs, func(s stamp) bool { return s != 0 && err != nil || s.isBefore(runs, now) })
}

// noted reports whether the stamp of an address fulfils the condition is.
func noted(p paths.Paths, addrs []netip.Addr, is func(stamp) bool) bool {
	f, err := os.OpenFile(formerFile(p), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close() //nolint:errcheck // read only
	for _, a := range addrs {
		var b [stampBytes]byte
		if _, err := f.ReadAt(b[:], slotOf(a)); is(stamp(binary.NativeEndian.Uint32(b[:]))) || err != nil && !errors.Is(err, io.EOF) {
			return true
		}
	}
	return false
}

// forgetFormer notes that no connection of a former pod with these addresses is left.
func forgetFormer(p paths.Paths, addrs []netip.Addr) error { return mark(p, 0, addrs, 0) }

func mark(p paths.Paths, flag int, addrs []netip.Addr, value stamp) error {
	f, err := os.OpenFile(formerFile(p), os.O_WRONLY|unix.O_NOFOLLOW|flag, 0o600)
	if err != nil {
		return err
	}
	errs := make([]error, 0, len(addrs)+1)
	for _, a := range addrs {
		_, err := f.WriteAt(binary.NativeEndian.AppendUint32(nil, uint32(value)), slotOf(a))
		errs = append(errs, err)
	}
	return errors.Join(append(errs, f.Close())...)
}
