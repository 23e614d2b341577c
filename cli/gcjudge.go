// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"slices"

	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/spec"
)

// judgement is the verdict of gc NETWORK on its network.
type judgement struct {
	app      *app
	network  string
	explicit bool // keep only the named ones
	named    []spec.Attachment

	judged       *gc.Judged
	gone, unsure []judgedOne
}

// judgedOne is an attachment that gc NETWORK removes, or keeps because it is unsure.
type judgedOne struct {
	*standing
	State gc.State `json:"state"`
	Why   string   `json:"why,omitempty"`
}

// keep lists the attachments to keep: all that are not certain to be dead. The caller
// makes sure that no ADD of this runtime runs; what another runtime attaches meanwhile is
// newer than the list, and stays for that reason.
func (j *judgement) keep(ctx context.Context) (keep []spec.Attachment, err error) {
	known, unread := j.app.standing(j.network)
	j.app.warn(unread)
	if j.explicit {
		for _, s := range known {
			if !slices.Contains(j.named, s.key()) {
				j.gone = append(j.gone, judgedOne{s, gc.Dead, ""})
			}
		}
		return j.named, nil
	}
	if j.judged, err = j.app.judge(ctx, j.network); err != nil && unread == nil {
		j.app.warn(err)
	}
	for _, a := range j.judged.Attachments {
		keep = append(keep, j.sort(a, known)...)
	}
	return keep, nil
}

// sort notes the verdict on an attachment. One without names cannot be on the list.
func (j *judgement) sort(a *gc.Attachment, known []*standing) (keep []spec.Attachment) {
	s := of(a, known)
	v := judgedOne{s, a.State, a.Why}
	switch a.State {
	case gc.Dead:
		j.gone = append(j.gone, v)
		return nil
	case gc.Unsure:
		j.unsure = append(j.unsure, v)
	}
	if a.ContainerID == "" {
		return nil
	}
	return []spec.Attachment{s.key()}
}

// of is ps's entry for an attachment, or one with only its names.
func of(a *gc.Attachment, known []*standing) *standing {
	s := &standing{Network: a.Network, ContainerID: cmp.Or(a.ContainerID, "owner "+string(a.Owner)), IfName: a.IfName}
	if i := slices.IndexFunc(known, func(x *standing) bool { return x.key() == s.key() }); i >= 0 {
		return known[i]
	}
	return s
}

// judge is gc.Judge without a runtime's list and a grace period.
func (a *app) judge(ctx context.Context, network string) (*gc.Judged, error) {
	o, err := a.gcOptions("", 0)
	if err != nil {
		return nil, err
	}
	return gc.Judge(ctx, o, network)
}
