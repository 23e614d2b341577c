// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/spec"
)

// inOrder compares the plugins of some calls with the plugins that must be called.
func inOrder(verb string, calls []*call, want []string) error {
	got := []string{}
	for _, c := range calls {
		got = append(got, c.Plugin)
	}
	if slices.Equal(got, want) {
		return nil
	}
	return fmt.Errorf("%s was called for %s, want %s", verb, list(got), list(want))
}

func list(words []string) string {
	if len(words) == 0 {
		return "no plugin"
	}
	return strings.Join(words, ", ")
}

func reversed(words []string) []string {
	out := slices.Clone(words)
	slices.Reverse(out)
	return out
}

// sorted orders calls by their plugins, so that a rule about who is called does not judge the order.
func sorted(calls []*call) []*call {
	out := slices.Clone(calls)
	slices.SortFunc(out, func(a, b *call) int { return strings.Compare(a.Plugin, b.Plugin) })
	return out
}

// final is the result that the last plugin gave in an ADD.
func final(d *done) object {
	calls := d.of("ADD")
	if len(calls) == 0 {
		return nil
	}
	return parseObject(calls[len(calls)-1].Stdout)
}

// prevIs checks the prevResult of calls.
func prevIs(calls []*call, want object) error {
	for _, c := range calls {
		prev, has := c.input["prevResult"]
		switch {
		case !has:
			return fmt.Errorf("%s has no prevResult", c)
		case !sameResult(prev, map[string]any(want)):
			return fmt.Errorf("%s has another prevResult: %s, want %s", c, text(prev), text(want))
		}
	}
	return nil
}

func text(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return cut(string(data), 600)
}

func lives(r *recording) error {
	for _, d := range r.done[:3] {
		if d.exit != 0 && !d.absent() || d.late {
			return errors.New(d.why())
		}
	}
	return nil
}

func addOrder(r *recording) error { return inOrder("ADD", r.nth(0).of("ADD"), r.plugins) }

func addPrev(r *recording) error {
	var before *call
	for _, c := range r.nth(0).of("ADD") {
		if before == nil {
			if prev, has := c.input["prevResult"]; has {
				return fmt.Errorf("%s has a prevResult: %s", c, text(prev))
			}
		} else if err := prevIs([]*call{c}, parseObject(before.Stdout)); err != nil {
			return err
		}
		before = c
	}
	return nil
}

func addResult(r *recording) error {
	d := r.nth(0)
	if strings.TrimSpace(d.stdout) == "" {
		return notJudged("the command prints no result")
	}
	if got := parseObject(d.stdout); !sameResult(map[string]any(got), map[string]any(final(d))) {
		return fmt.Errorf("it printed %s, want the result of the last plugin: %s", cut(strings.TrimSpace(d.stdout), 600), text(final(d)))
	}
	return nil
}

func checkOrder(r *recording) error { return inOrder("CHECK", r.nth(1).of("CHECK"), r.plugins) }
func checkPrev(r *recording) error  { return prevIs(r.nth(1).of("CHECK"), final(r.nth(0))) }
func delPrev(r *recording) error    { return prevIs(r.firstRound(2, len(r.plugins)), final(r.nth(0))) }

// dropIns checks that the plugin of the network's directory is one of the list, the last one. The rules about order judge the others.
func dropIns(r *recording) error {
	added, want := r.nth(0).of("ADD"), append(slices.Clone(r.plugins), "recorder-3")
	if err := inOrder("ADD", sorted(added), want); err != nil {
		return err
	}
	if last := added[len(added)-1]; last.Plugin != "recorder-3" {
		return fmt.Errorf("the last ADD was %s, want that of the file", last)
	}
	return inOrder("DEL", sorted(r.firstRound(1, len(want))), want)
}

func noDropIns(r *recording) error { return inOrder("ADD", sorted(r.nth(0).of("ADD")), r.plugins) }

// delOrder accepts several rounds.
func delOrder(r *recording) error {
	calls, want := r.nth(2).of("DEL"), reversed(r.plugins)
	for len(calls) > len(want) && inOrder("DEL", calls[:len(want)], want) == nil {
		calls = calls[len(want):]
	}
	return inOrder("DEL", calls, want)
}

func delAgain(r *recording) error {
	if d := r.nth(3); d.exit != 0 {
		return fmt.Errorf("the second %s", d.why())
	}
	return nil
}

func cacheRemoved(r *recording) error {
	if files := r.nth(2).files; len(files) > 0 {
		return fmt.Errorf("after the DEL, these files name the container: %s", strings.Join(files, ", "))
	}
	return nil
}

func oneAtATime(r *recording) error {
	for _, c := range r.all() {
		if len(c.during) > 0 {
			return fmt.Errorf("%s began while %s ran", c, strings.Join(c.during, ", "))
		}
	}
	return nil
}

func noDescriptors(r *recording) error {
	for _, c := range r.all() {
		if len(c.Descriptors) > 0 {
			return fmt.Errorf("%s inherited the descriptors %s", c, strings.Join(c.Descriptors, ", "))
		}
	}
	return nil
}

// environment compares each call with what the runtime was asked for, and with the first call.
func environment(r *recording) error {
	id, want := "", r.ifName
	for _, c := range r.all() {
		got := c.env("CNI_CONTAINERID")
		if err := spec.ValidateContainerID(got); err != nil {
			return fmt.Errorf("%s has CNI_CONTAINERID=%q: %w", c, got, err)
		}
		ifName, netns := c.env("CNI_IFNAME"), c.env("CNI_NETNS")
		if err := spec.ValidateIfName(ifName); err != nil {
			return fmt.Errorf("%s has CNI_IFNAME=%q: %w", c, ifName, err)
		}
		id, want = cmp.Or(id, got), cmp.Or(want, ifName)
		switch {
		case got != id:
			return fmt.Errorf("%s has CNI_CONTAINERID=%s, the first call %s", c, got, id)
		case ifName != want:
			return fmt.Errorf("%s has CNI_IFNAME=%q, want %s", c, ifName, want)
		case c.Verb == "DEL" && netns == "": // optional
		case c.NetNS == "" || !r.ownNetNS && !r.isNetNS(c.NetNS):
			return fmt.Errorf("%s has CNI_NETNS=%q, which is not the container's namespace", c, netns)
		}
		if !slices.Contains(filepath.SplitList(c.env("CNI_PATH")), r.bin) {
			return fmt.Errorf("%s has CNI_PATH=%q, without %s", c, c.env("CNI_PATH"), r.bin)
		}
	}
	return nil
}

func (r *recording) isNetNS(id string) bool {
	for _, have := range r.netns {
		if have == id {
			return true
		}
	}
	return false
}

func passesArgs(r *recording) error {
	for _, c := range r.all() {
		have := strings.Split(c.env("CNI_ARGS"), ";")
		for _, pair := range strings.Split(askedArgs, ";") {
			if !slices.Contains(have, pair) {
				return fmt.Errorf("%s has CNI_ARGS=%q, without %s", c, c.env("CNI_ARGS"), pair)
			}
		}
	}
	return nil
}

func runtimeConfig(r *recording) error {
	asked := parseObject(askedCapabilities)
	for _, c := range r.all() {
		want := map[string]any{}
		declared, _ := r.conf(c.Plugin)["capabilities"].(map[string]any) // nil if it declares none
		for name, on := range declared {
			if on == true {
				want[name] = asked[name]
			}
		}
		got, _ := c.input["runtimeConfig"].(map[string]any)
		if got == nil {
			got = map[string]any{}
		}
		if !reflect.DeepEqual(got, want) {
			return fmt.Errorf("%s has the runtimeConfig %s, want %s", c, text(got), text(want))
		}
	}
	return nil
}

func noCapabilities(r *recording) error {
	for _, c := range r.all() {
		if got, has := c.input["capabilities"]; has {
			return fmt.Errorf("%s has capabilities: %s", c, text(got))
		}
	}
	return nil
}

func nameAndVersion(r *recording) error {
	for _, c := range r.all() {
		if c.input["name"] != r.name || c.input["cniVersion"] != r.newest {
			return fmt.Errorf("%s has the name %v and the cniVersion %v, want %s and %s", c, c.input["name"], c.input["cniVersion"], r.name, r.newest)
		}
	}
	return nil
}

// inserted are the keys that are not the plugin's own. args is a convention.
var inserted = []string{"name", "cniVersion", "runtimeConfig", "prevResult", "capabilities", "args"}

func unchanged(r *recording) error {
	for _, c := range r.all() {
		if c.input == nil {
			return fmt.Errorf("%s got no JSON object: %q", c, cut(c.Stdin, 300))
		}
		if err := ownFields(c, r.conf(c.Plugin)); err != nil {
			return err
		}
	}
	return nil
}

// ownFields compares the fields of a plugin that the runtime does not insert.
func ownFields(c *call, conf object) error {
	own := func(o object) map[string]any {
		out := map[string]any{}
		for key, value := range o {
			if !slices.Contains(inserted, key) && !strings.HasPrefix(key, "cni.dev/") {
				out[key] = number(value)
			}
		}
		return out
	}
	if got, want := own(c.input), own(conf); !reflect.DeepEqual(got, want) {
		return fmt.Errorf("%s has the fields %s, want %s", c, text(got), text(want))
	}
	return nil
}

// number writes numbers in one way: 2.50 and 2.5 are the same.
func number(v any) any {
	switch v := v.(type) {
	case json.Number:
		f, err := v.Float64()
		if err != nil {
			return v
		}
		return f
	case map[string]any:
		out := map[string]any{}
		for key, e := range v {
			out[key] = number(e)
		}
		return out
	case []any:
		out := []any{}
		for _, e := range v {
			out = append(out, number(e))
		}
		return out
	}
	return v
}
