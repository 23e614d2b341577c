// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// Sysctls are kernel settings of one namespace, written in one trip into it. Values that
// are already set are not written.
type Sysctls struct {
	Where Where
	List  []nl.Setting

	// Needed makes a failure an error that begins with this text. Otherwise a key that the
	// kernel lacks is skipped. A /proc/sys that cannot be written is only a warning in both
	// cases (rootless callers).
	Needed string
}

// String is the sysctl command.
func (s Sysctls) String() string {
	words := []string{s.Where.String() + ": sysctl -w"}
	for _, set := range s.List {
		words = append(words, set.String())
	}
	return strings.Join(words, " ")
}

// Ensure writes the settings. Those of the host remain when the ADD fails: other containers
// may rely on them by then.
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

// ignoreMissing accepts an undo that fails because the interface is gone.
func ignoreMissing(_ nl.Setting, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Diff compares the needed settings. The others are optional, and operators and the tuning
// plugin may change them.
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
