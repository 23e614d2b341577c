// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package resident

// Failure stores the last failure of one subject. Its zero value means that there is no
// failure. Failure has no lock; callers that share a Failure must hold the lock of its
// subject.
type Failure struct {
	text string
}

// Changed stores err, or no failure if err is nil. Changed reports whether the text of err
// differs from the last failure's text. For nil, it reports whether there was a failure. After
// nil, every failure counts as changed. Changed compares texts because readers of the log see
// only the text.
func (f *Failure) Changed(err error) bool {
	was := f.text
	f.text = ""
	if err != nil {
		f.text = err.Error()
	}
	return f.text != was
}

// String returns the text of the failure, or "" if there is none.
func (f Failure) String() string { return f.text }
