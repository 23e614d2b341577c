// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
)

// Sysctls are kernel settings of one namespace. Ensure enters the namespace once for all of
// them. Sysctls does not write a value that is already set.
type Sysctls struct {
	Where Where
	List  []nl.Setting

	// Needed turns a failure into an error; the error begins with this text. If Needed is empty,
	// Ensure skips a key that the kernel lacks. In both cases a read-only /proc/sys (rootless
	// callers) is only a warning.
	Needed string
}

// String returns the sysctl command.
func (s Sysctls) String() string {
	words := []string{s.Where.String() + ": sysctl -w"}
	for _, set := range s.List {
		words = append(words, set.String())
	}
	return strings.Join(words, " ")
}

// Ensure writes the settings. Settings of the host stay when the ADD fails, because other
// containers may need them by then.
func (s Sysctls) Ensure(_ context.Context, env *Env) (Undo, error) {
	conn := env.Conn(s.Where)
	old, err := conn.SwapSysctls(s.List, func(_ nl.Setting, err error) error { return s.judge(env, err) })
	undo := func(context.Context) error {
		_, err := conn.SwapSysctls(old, ignoreMissing)
		return err
	}
	if s.Where == Host || len(old) == 0 {
		undo = nil
	}
	if err != nil && undo != nil {
		err = errors.Join(err, undo(context.Background()))
	}
	if err != nil {
		return nil, err
	}
	return undo, nil
}

// judge decides whether a setting that could not be written fails the ADD.
func (s Sysctls) judge(env *Env, err error) error {
	switch {
	case errors.Is(err, nl.ErrReadOnly), errors.Is(err, fs.ErrPermission):
		env.Warn(err)
		return nil
	case s.Needed == "":
		return nil
	}
	return fmt.Errorf("%s: %w", s.Needed, err)
}

// ignoreMissing lets an undo succeed if the interface no longer exists.
func ignoreMissing(_ nl.Setting, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Diff compares the needed settings. It skips the others, because operators and the plugin tuning
// may change them.
func (s Sysctls) Diff(_ context.Context, env *Env) (string, error) {
	if s.Needed == "" {
		return "", nil
	}
	for _, set := range s.List {
		got, err := env.Conn(s.Where).Sysctl(set.Key)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Sprintf("sysctl %s is missing", set.Key), nil
		}
		if err != nil {
			return "", err
		}
		if got != set.Value {
			return fmt.Sprintf("sysctl %s is %s instead of %s", set.Key, got, set.Value), nil
		}
	}
	return "", nil
}

// LinkIPv6 is a setting in net/ipv6/conf/LINK.
type LinkIPv6 struct {
	Link  string
	Conf  nl.IPv6Conf
	Value int32
}

func (l LinkIPv6) setting() nl.Setting {
	return nl.Setting{Key: "net/ipv6/conf/" + l.Link + "/" + l.Conf.String(), Value: strconv.Itoa(int(l.Value))}
}

// IPv6 is a list of settings of links in one namespace. The kernel sends their values together
// with the links, so reading them costs nothing. Ensure writes only values that are different.
type IPv6 struct {
	Where Where
	List  []LinkIPv6

	Needed string // see Sysctls
}

func (i IPv6) sysctls(list []LinkIPv6) Sysctls {
	s := Sysctls{Where: i.Where, Needed: i.Needed}
	for _, l := range list {
		s.List = append(s.List, l.setting())
	}
	return s
}

// String returns the sysctl command.
func (i IPv6) String() string { return i.sysctls(i.List).String() }

// Ensure writes the values that differ. If a link has no IPv6, Ensure still writes a needed
// setting, so that the kernel reports the error. Ensure skips other settings of such a link.
func (i IPv6) Ensure(ctx context.Context, env *Env) (Undo, error) {
	list, err := i.differing(env)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return i.sysctls(list).Ensure(ctx, env)
}

func (i IPv6) differing(env *Env) (list []LinkIPv6, err error) {
	for _, l := range i.List {
		link, err := env.Link(i.Where, l.Link)
		if err != nil {
			return nil, err
		}
		is, ok := env.Conn(i.Where).IPv6Setting(link.Attrs().Index, l.Conf)
		if ok && is != l.Value || !ok && i.Needed != "" {
			list = append(list, l)
		}
	}
	return list, nil
}

// Diff reports whether IPv6 is disabled although it is needed. Diff skips the other settings,
// because operators and the tuning plugin may change them.
func (i IPv6) Diff(_ context.Context, env *Env) (string, error) {
	list, err := i.differing(env)
	if err != nil {
		return diffMissing(err)
	}
	for _, l := range list {
		if l.Conf == nl.DisableIPv6 {
			return fmt.Sprintf("sysctl should be %s", l.setting()), nil
		}
	}
	return "", nil
}

// Forwarding switches on forwarding in the host's namespace. No DEL switches it off, because
// other programs may need it by then. "network rm" restores the earlier value from a note.
type Forwarding struct {
	IPv4, IPv6 bool
	Link       string // link of the host that Diff checks too; may be empty
	Failed     string // text of the error if the setting cannot be written
	Network    string // network to name in the note with the earlier value
}

func (f Forwarding) families() (list []int) {
	if f.IPv4 {
		list = append(list, unix.AF_INET)
	}
	if f.IPv6 {
		list = append(list, unix.AF_INET6)
	}
	return list
}

func forwardingKey(family int) nl.Setting {
	if family == unix.AF_INET {
		return nl.Setting{Key: "net/ipv4/ip_forward", Value: "1"}
	}
	return nl.Setting{Key: "net/ipv6/conf/all/forwarding", Value: "1"}
}

// String returns the sysctl command.
func (f Forwarding) String() string {
	s := Sysctls{Where: Host}
	for _, family := range f.families() {
		s.List = append(s.List, forwardingKey(family))
	}
	return s.String()
}

// Ensure reads the setting over netlink. Ensure writes the sysctl only if necessary.
func (f Forwarding) Ensure(ctx context.Context, env *Env) (Undo, error) {
	s := Sysctls{Where: Host, Needed: f.Failed}
	for _, family := range f.families() {
		if on, err := env.Host.Forwarding(family); err != nil || !on {
			s.List = append(s.List, forwardingKey(family))
		}
	}
	if len(s.List) == 0 {
		return nil, nil
	}
	f.note(env, s.List)
	if f.IPv6 && slices.Contains(s.List, forwardingKey(unix.AF_INET6)) {
		if err := keepRouters(ctx, env); err != nil {
			env.Warn(err)
		}
	}
	return s.Ensure(ctx, env)
}

// note writes down that forwarding was off, before Ensure switches it on. If the note cannot be
// written, "network rm" leaves forwarding on, which does no harm.
func (f Forwarding) note(env *Env, keys []nl.Setting) {
	for _, k := range keys {
		if env.Records == nil {
			return
		}
		before, err := env.Host.Sysctl(k.Key)
		if err == nil && before != k.Value {
			err = env.Records.NoteMade(record.MadeSysctl(k.Key), record.Made{Network: f.Network, Before: before})
		}
		if err != nil {
			env.Warn(err)
		}
	}
}

// Diff reports whether forwarding is off. For IPv4 it also checks the link, because the kernel
// drops packets that enter through a link without forwarding. For IPv6 it checks only the
// setting for all interfaces.
func (f Forwarding) Diff(_ context.Context, env *Env) (string, error) {
	var errs []error
	for _, family := range f.families() {
		on, err := env.Host.Forwarding(family)
		if err == nil && !on {
			return fmt.Sprintf("sysctl should be %s", forwardingKey(family)), nil
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil || !f.IPv4 || f.Link == "" {
		return "", err
	}
	link, err := env.Link(Host, f.Link)
	if err != nil {
		return diffMissing(err)
	}
	if on, err := env.Host.Forwards(unix.AF_INET, link.Attrs().Index); err != nil || on {
		return "", err
	}
	return fmt.Sprintf("sysctl should be net/ipv4/conf/%s/forwarding=1", f.Link), nil
}
