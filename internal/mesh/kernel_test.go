// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import "testing"

func TestRoutes(t *testing.T) {
	l := newLab(t)
	for _, underlay := range []string{"46", "6"} {
		t.Run(underlay, func(t *testing.T) {
			u := setup{Routes, underlay}
			u.all(l.hosts[:3]...)
			talk(t, l.hosts[:3]...)
		})
	}
}

func TestVXLAN(t *testing.T) {
	needVXLAN(t)
	for _, underlay := range []string{"4", "6", "46"} {
		t.Run(underlay, func(t *testing.T) {
			l := newLab(t)
			u := setup{VXLAN, underlay}
			u.all(l.hosts...)
			talk(t, l.hosts...)
		})
	}
}

func TestAuto(t *testing.T) {
	needVXLAN(t)
	l := newLab(t)
	u := setup{Auto, "46"}
	u.all(l.hosts...)
	talk(t, l.hosts...)
}
