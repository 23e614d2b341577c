// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The checks of scenarios in which plugins misbehave, the namespace is deleted, or the runtime is killed.

// failsWith checks that an operation failed, and that its caller can read the plugin's message.
func failsWith(d *done, message string) error {
	switch {
	case d.late || d.exit < 0:
		return errors.New(d.why())
	case d.exit == 0:
		return fmt.Errorf("%s succeeded, although a plugin failed", d.do)
	case !strings.Contains(d.stdout+d.stderr, message):
		return fmt.Errorf("%s, without the plugin's message %q", d.why(), message)
	}
	return nil
}

func addFails(r *recording) error   { return failsWith(r.nth(0), failText) }
func delFails(r *recording) error   { return failsWith(r.nth(1), failText) }
func checkFails(r *recording) error { return failsWith(r.nth(1), failText) }

// notAfterFailure checks that the plugin behind the one that failed got no ADD.
func notAfterFailure(r *recording) error {
	for _, c := range r.nth(0).of("ADD") {
		if c.Plugin == "recorder-3" {
			return fmt.Errorf("%s was called, although recorder-2 had failed", c)
		}
	}
	return nil
}

// failsAndHalts checks an ADD in which the second plugin gives no usable answer.
func failsAndHalts(r *recording) error {
	if err := failsWith(r.nth(0), ""); err != nil {
		return err
	}
	return notAfterFailure(r)
}

// delAfterADD checks that every plugin got a DEL, whether the runtime called it in the ADD or when it was asked.
func delAfterADD(r *recording) error {
	if inOrder("DEL", sorted(r.firstRound(0, len(r.plugins))), r.plugins) == nil {
		return nil
	}
	return inOrder("DEL", sorted(r.firstRound(1, len(r.plugins))), r.plugins)
}

func delHalts(r *recording) error {
	calls := r.nth(1).of("DEL")
	for i, c := range calls {
		if c.Plugin == "recorder-2" && i < len(calls)-1 {
			return fmt.Errorf("%s was called after %s had failed", calls[i+1], c)
		}
	}
	return nil
}

// delRepeated checks the DEL after one that failed. A plugin that succeeded before need not be called again. Once all have succeeded,
// the result may be forgotten. The rule del-prev says whether prevResult is right.
func delRepeated(r *recording) error {
	before, missing := r.nth(1).of("DEL"), slices.Clone(r.plugins)
	for i, c := range append(slices.Clone(before), r.nth(2).of("DEL")...) {
		was, is := before[0].input["prevResult"], c.input["prevResult"]
		if i >= len(before) && len(missing) > 0 && !sameResult(was, is) {
			return fmt.Errorf("the second %s has the prevResult %s, the first had %s", c, text(is), text(was))
		}
		if c.ended && c.Exit == 0 {
			missing = slices.DeleteFunc(missing, func(p string) bool { return p == c.Plugin })
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("after both DELs, none has succeeded for %s", list(missing))
	}
	return nil
}

func delWithoutNetNS(r *recording) error {
	if d := r.nth(1); d.exit != 0 || d.late {
		return errors.New(d.why())
	}
	return inOrder("DEL", sorted(r.firstRound(1, len(r.plugins))), r.plugins)
}

// runtimeKilled checks the DEL after a kill, and that nothing stops another ADD.
func runtimeKilled(r *recording) error {
	called := []string{}
	for _, c := range r.nth(0).of("ADD") {
		called = append(called, c.Plugin)
	}
	if len(called) < 2 {
		return notJudged("the ADD ended before it could be killed")
	}
	got := []string{}
	for _, c := range r.nth(1).of("DEL") {
		got = append(got, c.Plugin)
	}
	for _, plugin := range called {
		if !slices.Contains(got, plugin) {
			return fmt.Errorf("the DEL after the kill was called for %s, but ADD had been called for %s", list(got), list(called))
		}
	}
	for _, d := range r.done[1:] {
		if d.exit != 0 || d.late {
			return fmt.Errorf("after the kill, %s", d.why())
		}
	}
	return nil
}

func noise(r *recording) error {
	d := r.nth(0)
	if d.exit != 0 || d.late {
		return errors.New(d.why())
	}
	for _, c := range d.of("ADD") {
		if prev, _ := c.input["prevResult"].(map[string]any); prev[noiseKey] != nil {
			return fmt.Errorf("%s has a prevResult of what a plugin wrote to standard error: %s", c, text(prev))
		}
	}
	return nil
}

func checkDisabled(r *recording) error {
	d := r.nth(1)
	if calls := d.of("CHECK"); len(calls) > 0 {
		return fmt.Errorf("%s was called", calls[0])
	}
	if d.exit != 0 {
		return errors.New(d.why())
	}
	return nil
}

func status(r *recording) error {
	well, ill := r.nth(0), r.nth(1)
	if well.exit != 0 || well.late {
		return fmt.Errorf("%s, although every plugin is ready", well.why())
	}
	if err := inOrder("STATUS", sorted(well.of("STATUS")), r.plugins); err != nil {
		return err
	}
	return failsWith(ill, failText)
}

func gcAll(r *recording) error {
	calls := r.nth(1).of("GC")
	for _, c := range calls {
		if c.env("CNI_PATH") == "" {
			return fmt.Errorf("%s has no CNI_PATH", c)
		}
	}
	return inOrder("GC", sorted(calls), r.plugins)
}

// gcList checks that the attachment is on the list, or got its DEL before.
func gcList(r *recording) error {
	id, ifName, detached := "", "", false
	for _, c := range r.all() {
		switch c.Verb {
		case "ADD":
			id, ifName = c.env("CNI_CONTAINERID"), c.env("CNI_IFNAME")
		case "DEL":
			detached = true
		case "GC":
			valid, ok := c.input["cni.dev/valid-attachments"].([]any)
			if !ok {
				return fmt.Errorf("%s has no list cni.dev/valid-attachments", c)
			}
			if !detached && !lists(valid, id, ifName) {
				return fmt.Errorf("%s lists %s, without %s/%s, which got no DEL", c, text(valid), id, ifName)
			}
		}
	}
	return nil
}

func lists(valid []any, id, ifName string) bool {
	return slices.ContainsFunc(valid, func(v any) bool {
		a, _ := v.(map[string]any) // another type is not the attachment
		return a["containerID"] == id && a["ifname"] == ifName
	})
}

func gcFails(r *recording) error {
	d := r.nth(0)
	if calls := d.of("GC"); len(calls) == 1 && calls[0].Plugin == "recorder-1" {
		return fmt.Errorf("no plugin was called after %s had failed", calls[0])
	}
	return failsWith(d, failText)
}

func gcDisabled(r *recording) error {
	if calls := r.nth(0).of("GC"); len(calls) > 0 {
		return fmt.Errorf("%s was called", calls[0])
	}
	return nil
}

// reloads checks that the second ADD has the new list of plugins.
func reloads(r *recording) error {
	if d := r.nth(1); d.exit != 0 || d.late {
		return errors.New(d.why())
	}
	return inOrder("ADD", r.nth(1).of("ADD"), []string{"recorder-1", "recorder-3"})
}

// delSameConf checks that no plugin and no field of the changed file is in the DEL.
func delSameConf(r *recording) error {
	calls := r.firstRound(2, len(r.plugins))
	if err := inOrder("DEL", sorted(calls), r.plugins); err != nil {
		return fmt.Errorf("the network's file was changed after the ADD: %w", err)
	}
	for _, c := range calls {
		if strings.Contains(c.Stdin, changedText) {
			return fmt.Errorf("%s has the changed configuration", c)
		}
	}
	return nil
}
