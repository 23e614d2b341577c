// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
)

// dirs are the directories in which plugins and the driver keep their state.
var dirs = []string{"/run/patchbay", "/var/lib/patchbay", "/var/lib/cni", "/run/cni"}

// ofNetworks are the directories of the driver's state about Docker networks, which outlive
// containers.
var ofNetworks = []string{"/var/lib/patchbay/docker/networks/", "/var/lib/patchbay/docker/pools/"}

var builtin = regexp.MustCompile(`^nft (table ip6? (raw|mangle|nat|filter)|chain ip6? (raw|mangle|nat|filter) (PREROUTING|INPUT|FORWARD|OUTPUT|POSTROUTING))$`)

// carried returns all state of the lab: links, addresses, routes, policy rules, the firewall of all
// programs, and the files in dirs.
func (l *Lab) carried() (s leak.State, err error) {
	l.Helper()
	root := "/proc/" + l.holder() + "/root"
	var in []string
	for _, dir := range dirs {
		in = append(in, root+dir)
	}
	err = l.Do(func() (err error) {
		s, err = leak.Take(in...)
		return err
	})
	for i := range s {
		s[i] = strings.Replace(s[i], root, "", 1)
	}
	return s, err
}

// Mark notes the lab's state without any container.
func (l *Lab) Mark() {
	l.Helper()
	var err error
	l.before, err = l.carried()
	must(l, err)
}

// left returns the state that the lab has gained since Mark, without the state that outlives
// attachments by design.
func (l *Lab) left() (leak.State, error) {
	l.Helper()
	s, err := l.carried()
	return s.Beyond(l.before).Without(leak.Standing).Without(outlives), err
}

// outlives reports whether a line may remain: state that Docker keeps for its networks, or a table
// or chain of iptables, which iptables keeps when it is empty.
func outlives(line string) bool {
	if builtin.MatchString(line) {
		return true
	}
	for _, dir := range ofNetworks {
		if strings.HasPrefix(line, "file "+dir) {
			return true
		}
	}
	return false
}

// Gone waits until attachments have left nothing.
func (l *Lab) Gone(when string) {
	l.Helper()
	var left leak.State
	var err error
	for end := time.Now().Add(pollTime); time.Now().Before(end); time.Sleep(2 * pollEvery) {
		if left, err = l.left(); err == nil && len(left) == 0 {
			return
		}
	}
	l.Errorf("%s: left behind (%v):\n%s", when, err, left)
}

// Now returns the lab's whole state, with that of running containers.
func (l *Lab) Now() leak.State {
	l.Helper()
	s, err := l.carried()
	must(l, err)
	return s
}

// Same waits until the lab's state equals an earlier one.
func (l *Lab) Same(when string, before leak.State) {
	l.Helper()
	var left, lost leak.State
	var err error
	for end := time.Now().Add(pollTime); time.Now().Before(end); time.Sleep(2 * pollEvery) {
		var now leak.State
		now, err = l.carried()
		left, lost = now.Beyond(before).Without(leak.Standing).Without(outlives), before.Beyond(now).Without(outlives)
		if err == nil && len(left)+len(lost) == 0 {
			return
		}
	}
	l.Errorf("%s (%v): left behind:\n%s\nlost:\n%s", when, err, left, lost)
}

// Pools fails the test if the driver still has address pools after the Docker networks that
// requested them are gone.
func (l *Lab) Pools(when string) {
	l.Helper()
	if pools := l.Sh(fmt.Sprintf("ls %s 2>/dev/null", ofNetworks[1])); pools != "" {
		l.Errorf("%s: pools left: %s", when, pools)
	}
}
