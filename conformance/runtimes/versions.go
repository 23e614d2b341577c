// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// The checks of scenarios about versions.

func highest(r *recording) error {
	if d := r.nth(0); d.exit != 0 || d.late {
		return errors.New(d.why())
	}
	for _, c := range r.all() {
		if c.input["cniVersion"] != "1.1.0" {
			return fmt.Errorf("%s has the cniVersion %v, want 1.1.0", c, c.input["cniVersion"])
		}
	}
	return nil
}

func older(r *recording) error {
	if d := r.nth(0); d.exit != 0 || d.late {
		return errors.New(d.why())
	}
	for _, c := range r.all() {
		if c.input["cniVersion"] != olderVersion {
			return fmt.Errorf("%s has the cniVersion %v, want %s", c, c.input["cniVersion"], olderVersion)
		}
		if prev, has := c.input["prevResult"].(map[string]any); has {
			if err := isOlder(prev); err != nil {
				return fmt.Errorf("%s has a prevResult in another format: %w: %s", c, err, text(prev))
			}
		}
	}
	return nil
}

// isOlder checks the format of a result of olderVersion, whose addresses say their version.
func isOlder(result object) error {
	if v := result["cniVersion"]; v != olderVersion {
		return fmt.Errorf("its cniVersion is %v", v)
	}
	ips, _ := result["ips"].([]any)
	for _, ip := range ips {
		if ip, _ := ip.(map[string]any); ip["version"] != "4" {
			return errors.New("its address has no version")
		}
	}
	return nil
}

// olderResult checks what the second plugin gets, if it is called.
func olderResult(r *recording) error {
	d := r.nth(0)
	if d.late || d.exit < 0 {
		return errors.New(d.why())
	}
	for _, c := range d.of("ADD")[1:] {
		prev, _ := c.input["prevResult"].(map[string]any)
		if prev["cniVersion"] != c.input["cniVersion"] {
			return fmt.Errorf("%s of version %v has a prevResult of version %v", c, c.input["cniVersion"], prev["cniVersion"])
		}
		var ips []map[string]json.RawMessage
		_ = json.Unmarshal([]byte(text(prev["ips"])), &ips) // no list is no address
		if slices.ContainsFunc(ips, func(ip map[string]json.RawMessage) bool { return ip["version"] != nil }) {
			return fmt.Errorf("%s of version %v has a prevResult in the format of %s", c, c.input["cniVersion"], olderVersion)
		}
	}
	return nil
}

func onlyItsVerbs(r *recording) error {
	for _, c := range r.all() {
		if c.Verb != "ADD" && c.Verb != "DEL" {
			return fmt.Errorf("%s was called", c)
		}
	}
	return nil
}
