"""Examples for work of the loop's own, by what it does. Each line stands for the loop's own one."""

AHEAD = """\
def collate(samples):  # in the workers, ahead of the loop
    batch = torch.utils.data.default_collate(samples)
    return prepare(batch)  # what the loop did between fetch and forward pass
loader = DataLoader(dataset, collate_fn=collate, num_workers=4)"""

DRAWN = """\
rows = torch.randint(len(states), (128,))  # states and rewards: one tensor each, made once
batch = states[rows], rewards[rows]"""

RARELY = """\
if step % 100 == 0:  # not in every step
    report(loss.item())"""

ON_DEVICE = """\
right += (logits.argmax(1) == labels).sum()  # a tensor: nothing waits for it
seen += len(labels)
if step % 100 == 0:
    accuracy = right.item() / seen  # one value, now and then"""

COLUMNS = """\
values = torch.from_numpy(frame[["a", "b"]].to_numpy(dtype="float32"))  # once, before training
batch = values[rows]  # in place of frame.iloc[row] for each row"""

KEPT_COPY = """\
if score > best_score:  # copy only what is to be kept
    best_score = score
    best = {name: value.detach().clone() for name, value in model.state_dict().items()}"""

SAVE = """\
if step % 1000 == 0:
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    threading.Thread(target=torch.save, args=(state, path)).start()"""

PLOT = """\
losses.append(loss.detach())  # keep the values, draw once an epoch
if epoch_ends:
    plot(torch.stack(losses).cpu())"""

VECTORISED = """\
counts = (batch * weights).sum(dim=1)  # the whole batch at once, no loop over its elements"""
