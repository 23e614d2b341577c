// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/patchbay-net/patchbay/spec"
)

// callTime limits each call of a plugin.
const callTime = 30 * time.Second

func theWorld(ts *testscript.TestScript) *World { return ts.Value(worldKey{}).(*World) }

// condition evaluates the conditions; the package comment explains them.
func (s *Suite) condition(cond, version string) (bool, error) {
	if v, ok := strings.CutPrefix(cond, "since:"); ok {
		return spec.AtLeast(version, v), nil
	}
	if k, ok := strings.CutPrefix(cond, "kind:"); ok {
		return s.Subject.Kind == k, nil
	}
	switch cond {
	case "stateless":
		return s.Subject.Stateless, nil
	case "unchecked":
		return s.Subject.Unchecked, nil
	case "again":
		return s.Subject.Again, nil
	case "exec":
		return s.programs(), nil
	case "delegates":
		return s.Subject.Kind == "interface" && s.Subject.delegate() != "", nil
	case "ports":
		return s.Subject.hostPort() != 0, nil
	case "leaves":
		return len(s.Subject.Leaves) > 0, nil
	case "lo":
		return s.Subject.IfName == "lo", nil
	}
	return false, fmt.Errorf("unknown condition %q", cond)
}

func cmdCNI(ts *testscript.TestScript, neg bool, args []string) {
	w := theWorld(ts)
	r, err := parseRequest(args)
	ts.Check(err)
	p, err := w.place(r.get("at", ""))
	ts.Check(err)
	out, err := w.runFor(p, r)
	var own *verdict
	switch {
	case errors.As(err, &own):
		ts.Fatalf("%s: %v", r.verb, err)
	case errors.Is(err, context.DeadlineExceeded):
		w.suite.hung()
		ts.Fatalf("%s did not end within %v", r.verb, w.suite.limit())
	case err != nil && !neg && r.get("may", "") != "fail":
		ts.Fatalf("%s failed: code %d: %v", r.verb, spec.ErrorCode(err), err)
	case err == nil && neg:
		ts.Fatalf("%s succeeded: %s", r.verb, out)
	case err != nil:
		w.err = err
		out = []byte(err.Error())
	}
	_, err = ts.Stdout().Write(append(out, '\n'))
	ts.Check(err)
}

// verdict is an error that the suite found, not one that the plugin reported. Either the plugin's
// answer violates the specification, or the suite could not build the request.
type verdict struct{ err error }

func (v *verdict) Error() string { return v.err.Error() }

// runFor works like run, with a time limit.
func (w *World) runFor(p *place, r *request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), w.suite.limit())
	defer cancel()
	return w.run(ctx, p, r)
}

// run calls the plugin and stores the result of an ADD in p.
func (w *World) run(ctx context.Context, p *place, r *request) ([]byte, error) {
	call, err := w.call(p, r)
	if err != nil {
		return nil, &verdict{fmt.Errorf("build the request: %w", err)}
	}
	out, err := w.invoke(ctx, call)
	if err != nil {
		return nil, err
	}
	if err := w.judge(p, r, out); err != nil {
		return out, &verdict{err}
	}
	return out, nil
}

// judge checks the plugin's standard output against the specification. ADD must print a result of
// the requested version. VERSION must print something. The other verbs must print nothing.
func (w *World) judge(p *place, r *request, out []byte) error {
	switch r.verb {
	case spec.Version:
		_, err := spec.ParseVersions(out)
		return err
	case spec.Add:
	default:
		if len(strings.TrimSpace(string(out))) > 0 {
			return fmt.Errorf("%s wrote to standard output: %q", r.verb, out)
		}
		return nil
	}
	var head struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(out, &head); err != nil {
		return fmt.Errorf("standard output is not one JSON object: %w: %q", err, out)
	}
	if head.CNIVersion != w.version {
		return fmt.Errorf("result is of version %q, asked for was %q", head.CNIVersion, w.version)
	}
	result, err := spec.ParseResult(out, w.version)
	if err == nil {
		p.Result = result
	}
	return err
}

// cmdError compares the plugin's last error with the expected code and text.
func cmdError(ts *testscript.TestScript, neg bool, args []string) {
	w := theWorld(ts)
	if neg || len(args) == 0 || len(args) > 2 {
		ts.Fatalf("usage: error CODES [regexp]")
	}
	if w.err == nil {
		ts.Fatalf("there was no error")
	}
	e := spec.AsError(w.err)
	if e.Msg == "" || e.Code == 0 {
		ts.Fatalf("an error needs a code and a message: %+v", e)
	}
	codes := strings.Split(args[0], ",")
	if args[0] == "object" {
		if !errors.As(w.err, new(*spec.Error)) {
			ts.Fatalf("standard output has no error object: %v", w.err)
		}
		return
	}
	if args[0] != "any" && !slices.Contains(codes, strconv.Itoa(int(e.Code))) {
		ts.Fatalf("code is %d, want %s: %v", e.Code, args[0], e)
	}
	if w.broken && !strings.Contains(e.Error(), w.suite.BreakError) {
		ts.Fatalf("after the damage the message is %q, want %q in it", e.Error(), w.suite.BreakError)
	}
	if len(args) == 2 && !regexp.MustCompile(args[1]).MatchString(e.Error()) {
		ts.Fatalf("message is %q, want %s", e.Error(), args[1])
	}
}

// cmdBreak damages the first attachment.
func cmdBreak(ts *testscript.TestScript, neg bool, args []string) {
	w := theWorld(ts)
	p, err := w.place("")
	ts.Check(err)
	w.broken = true
	if w.suite.Break != nil {
		w.suite.Break(w.t.(goTest).T, &p.Container)
		return
	}
	switch how := w.suite.Subject.breaking(); how {
	case "del":
		_, err := w.runFor(p, &request{verb: spec.Del})
		ts.Check(err)
	case "prev":
		breakPrev(p)
	default:
		ts.Check(w.damage(how, &p.Container))
	}
}

// breakPrev changes the gateways in the attachment's previous result.
func breakPrev(p *place) {
	for i, ip := range p.Result.IPs {
		if ip.Gateway.IsValid() {
			p.Result.IPs[i].Gateway = ip.Gateway.Next().Next()
		}
	}
}

// cmdNetNS deletes the namespace of an attachment without a DEL. After "recycle" the path of the first leads to the
// namespace of the second.
func cmdNetNS(ts *testscript.TestScript, neg bool, args []string) {
	w := theWorld(ts)
	switch {
	case !neg && len(args) == 1 && args[0] == "recycle":
		ts.Check(w.recycle())
		return
	case neg || len(args) == 0 || args[0] != "delete":
		ts.Fatalf("usage: netns delete [attachment], or netns recycle")
	}
	p, err := w.place(strings.Join(args[1:], ""))
	ts.Check(err)
	ts.Check(w.deleteNetNS(p))
}

// cmdClean checks that the plugin left nothing behind.
func cmdClean(ts *testscript.TestScript, neg bool, args []string) {
	leftovers, err := theWorld(ts).settle()
	ts.Check(err)
	if len(leftovers) > 0 {
		ts.Fatalf("left behind:\n%s", leftovers)
	}
}

// cmdStands checks that the node has more objects than at the start. So it proves that cmdClean
// can see what an attachment makes.
func cmdStands(ts *testscript.TestScript, neg bool, args []string) {
	leftovers, err := theWorld(ts).leftovers()
	ts.Check(err)
	if len(leftovers) == 0 {
		ts.Fatalf("nothing exists after ADD")
	}
}
